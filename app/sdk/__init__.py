"""What services build on; none of it needs a worker."""
