"""Fetches raw batches of many partitions within a byte budget, decodes them, and shares reads."""
