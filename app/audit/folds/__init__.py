"""Reports folded into windows and tiers, and compared. Pure."""
