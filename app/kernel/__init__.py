"""Types and rules that all rooms share: jobs, offsets, trackers, leases, fencing, load, rates."""
