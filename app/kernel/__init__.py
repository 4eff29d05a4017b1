"""What all others speak in: jobs, offsets, the tracker, leases, fencing, load, rates. Pure."""
