"""Which partitions audit plans count, and whether clients count as planned."""
