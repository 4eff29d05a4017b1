"""Sizes by REST and on the command line."""
