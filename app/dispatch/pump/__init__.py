"""One partition pushed: fetched batches in, deliveries out, a prefix to commit."""
