"""Jobs of Spark: pure functions on small frames, and once from end to end on real Kafka."""
