"""Services over a worker's dispatch jobs: definition changes, pauses, head-of-line blocking, catch-up."""
