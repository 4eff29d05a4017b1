"""What the audit library and the workers' audit both count by: reports, sums, windows. It does no I/O."""
