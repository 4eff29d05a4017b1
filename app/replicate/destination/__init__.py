"""Appends a replica's copies behind those of a former owner, and compares them with what was sent."""
