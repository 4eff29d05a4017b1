"""The soak: random faults and incidents drawn from a seed, and a book that must account for every message."""
