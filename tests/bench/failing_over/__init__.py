"""What the bench `failover` measures, and with what."""
