"""Folds reports into windows and tiers, and compares tiers. Pure."""
