"""Calls to receivers: the unary and the stream contract, health, metadata, limits of answers."""
