"""Audits of a worker: reports sent, books of windows and tiers, what all workers know."""
