"""Counts a partition's records, and beside a workload's pump the messages that its group has finished."""
