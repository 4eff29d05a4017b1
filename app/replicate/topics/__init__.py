"""The partitions that routes copy, and the destination topics that the leader creates and configures."""
