"""Placement as a rule: sticky bin packing over cpu, memory and network. Pure."""
