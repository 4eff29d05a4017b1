"""One partition counted, by which times and ids; what a workload has finished, counted beside."""
