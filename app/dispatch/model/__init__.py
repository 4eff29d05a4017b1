"""Rules of dispatch: outcomes, breaker, limits, order, delays, dead letters. Pure."""
