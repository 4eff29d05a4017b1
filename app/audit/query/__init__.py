"""What is told of windows, tiers and topics; where in a log a time is, and its records."""
