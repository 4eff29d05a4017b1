"""Failovers and roles by REST, as metrics and on the command line."""
