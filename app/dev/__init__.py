"""For developers and stories; no part of a worker."""
