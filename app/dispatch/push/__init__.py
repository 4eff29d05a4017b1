"""Calls to receivers: the unary contract, health, metadata, bounds of answers."""
