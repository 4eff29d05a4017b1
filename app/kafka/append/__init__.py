"""Appends to Kafka: batches as they are, with order, sequence numbers and retries; copies; transactions."""
