"""Operators' acts and the overview of workers and jobs, by REST and on the command line."""
