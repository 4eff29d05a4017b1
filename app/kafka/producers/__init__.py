"""What brokers know of producers: ids, what one has written, what a leader remembers."""
