"""How large workloads and the fleet should be, from measured load."""
