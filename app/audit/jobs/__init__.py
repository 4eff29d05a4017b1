"""A worker's audits: jobs and reports, books of windows and tiers, and queries to all workers."""
