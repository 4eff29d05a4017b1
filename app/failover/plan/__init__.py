"""What a failover would do: positions, impact, checks; and drills."""
