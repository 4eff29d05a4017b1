"""Topics of a workload: those it needs beside its own, those in which nothing waits any more."""
