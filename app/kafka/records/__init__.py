"""The bytes of a Kafka log: batches, records, sequence numbers, leader epochs. Pure."""
