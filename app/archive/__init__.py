"""Archives that Spark's jobs keep: layout, log, reader; without Spark."""
