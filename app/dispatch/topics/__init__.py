"""Topics of a workload: their settings, the ones that still hold messages, and idle workloads."""
