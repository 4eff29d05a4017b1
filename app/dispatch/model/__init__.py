"""Decisions of dispatch: outcomes, breakers, limits, order, delays, dead letters. Pure."""
