"""Placement by REST and on the command line: show it, plan it, move jobs, drain workers."""
