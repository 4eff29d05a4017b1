"""What a worker runs beside Faust: its jobs, snapshots, commits, operators' acts, watchdogs."""
