"""The pump of one partition: fetched batches in, deliveries out, an offset to commit."""
