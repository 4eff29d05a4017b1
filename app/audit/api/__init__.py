"""Audits by REST and on the command line."""
