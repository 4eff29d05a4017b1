"""Offsets across clusters by REST, as metrics and on the command line."""
