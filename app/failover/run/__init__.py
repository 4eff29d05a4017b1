"""Roles kept, other regions heard, derived routes, failovers carried out."""
