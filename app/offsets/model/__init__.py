"""The offset map, translation of positions, progress by producers' numbers. Pure."""
