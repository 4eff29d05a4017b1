"""REST, metrics and command line for offsets across clusters."""
