"""Offsets across clusters: the offset map, positions mapped by it, and groups in offset sync."""
