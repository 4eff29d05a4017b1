"""Raw batches of many partitions, bounded in bytes, and their decoding; reads shared by readers."""
