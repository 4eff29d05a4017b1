"""A workload moved to another cluster that has its topic."""
