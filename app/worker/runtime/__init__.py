"""The services of a worker beside Faust: its jobs, snapshots, commits, operators' acts, watchdogs."""
