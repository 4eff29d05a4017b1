"""Tables of all regions on a worker's disk, with the newest ends of their topics."""
