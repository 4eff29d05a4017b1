"""What stands in a log, byte by byte: batches, records, sequence numbers, leader epochs. Pure."""
