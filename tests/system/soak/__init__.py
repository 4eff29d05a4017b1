"""The soak: random trouble, drawn from a seed, and a book in which every message has to balance."""
