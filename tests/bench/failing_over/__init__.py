"""Parts of the bench `failover`: both sides, their traffic and measurements."""
