"""Batches appended as they are: order, sequence numbers, retries; copies and transactions."""
