"""Positions mapped, groups kept in step, what other regions have finished."""
