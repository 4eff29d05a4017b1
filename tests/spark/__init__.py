"""Tests of the Spark jobs: pure functions on small frames, and jobs from end to end on real Kafka."""
