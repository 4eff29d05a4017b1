"""One workload on a worker: which message goes to which receiver, when, how many at once."""
