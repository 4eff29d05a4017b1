"""Views of windows, tiers and topics; the offsets and the records of a time."""
