"""Workloads and their dead letters by REST and on the command line."""
