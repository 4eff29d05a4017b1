"""The REST calls and commands for workloads and their dead letters."""
