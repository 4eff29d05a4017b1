"""Tables of all regions on a worker's disk, with the tails of their event topics."""
