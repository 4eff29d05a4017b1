"""Copies partitions into another cluster."""
