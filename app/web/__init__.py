"""What a worker serves."""
