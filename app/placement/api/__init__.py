"""Placement by REST and on the command line: shown, planned, moved by hand, drained."""
