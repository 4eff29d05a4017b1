"""A region's part in failovers: derived routes, roles, reports of other regions, and failover runs."""
