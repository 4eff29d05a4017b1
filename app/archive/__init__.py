"""Archives that Spark's jobs write: layout, log and reader, without Spark."""
