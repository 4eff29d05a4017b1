"""Recommended sizes of workloads and fleets, from measured load."""
