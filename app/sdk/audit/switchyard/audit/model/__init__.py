"""Reports, sums and windows, for the audit library and the workers' audit alike. No I/O."""
