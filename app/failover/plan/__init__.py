"""Plans of failovers: positions, impact, checks; and drills."""
