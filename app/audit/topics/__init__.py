"""Partitions that plans count, and whether clients count as planned."""
