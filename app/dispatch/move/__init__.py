"""Moves a workload to another cluster that has its topic."""
