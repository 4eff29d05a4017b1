"""Offset sync between regions: positions mapped and committed, and progress imported from other regions."""
