"""Names of the places where records are counted: a cluster, or a consumer group in one."""

from __future__ import annotations

# The tiers that workers count: the tiers of clusters (`app.failover.topology`), and `other`.
OF_WORKERS = ("regional", "aggregate", "other")
_GROUP = ":"  # before the group in the place of a consumer; no cluster's name has it


def place_of(cluster: str, group: str) -> str:
    """The place of a consumer group in a cluster. Counts of different groups are never added up."""
    return f"{cluster}{_GROUP}{group}"


def group_of(place: str) -> tuple[str, str]:
    """The inverse of `place_of`: cluster and group, "" for the cluster itself."""
    cluster, _, group = place.partition(_GROUP)
    return cluster, group


def is_of_workers(tier: str, cluster: str) -> bool:
    """Whether only workers count here: a cluster's topics, or a workload's group."""
    return tier in OF_WORKERS or bool(group_of(cluster)[1])
