"""Alerts looked for by the leader, worded, and sent on each channel."""
