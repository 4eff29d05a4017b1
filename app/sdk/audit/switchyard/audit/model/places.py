"""Where something was counted: in a cluster, or by a consumer group that reads it."""

from __future__ import annotations

# The tiers that workers count: the two roles of clusters (`app.failover.topology`), and neither of them.
OF_WORKERS = ("regional", "aggregate", "other")
_GROUP = ":"  # in the name of a consumer's place, before its group; no cluster has it in its name


def place_of(cluster: str, group: str) -> str:
    """What stands for the cluster of what a group has finished there: groups are never added up."""
    return f"{cluster}{_GROUP}{group}"


def group_of(place: str) -> tuple[str, str]:
    """The inverse: cluster and group, "" for that of a cluster itself."""
    cluster, _, group = place.partition(_GROUP)
    return cluster, group


def is_of_workers(tier: str, cluster: str) -> bool:
    """Whether workers count the tier: a cluster's topics, or what a workload's group finishes there."""
    return tier in OF_WORKERS or bool(group_of(cluster)[1])
