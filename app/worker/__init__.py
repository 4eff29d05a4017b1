"""A process of a region and its jobs; catalog (which jobs there are)."""
