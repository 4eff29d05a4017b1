"""Dispatch jobs of a worker: changed definitions, pauses, heads of lines, catching up."""
