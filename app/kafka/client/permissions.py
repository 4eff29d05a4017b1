"""Permissions that Switchyard's principal lacks in a cluster, and the command that grants them.

Brokers ask for Read where records are fetched and for Write where they are appended, each of which includes
Describe, and for Read on a group under which offsets are committed. Routes keep their destination topics like
the source by Create, Alter, DescribeConfigs and AlterConfigs. Who may write to any topic may also be an
idempotent producer; before Kafka 2.8 that takes IdempotentWrite on the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

Resource = Literal["topic", "group", "cluster"]

PLACEHOLDER = "<Switchyard's principal>"  # of a certificate or a token the broker makes the name
ITSELF = "it is tried again by itself"
CLUSTER = "kafka-cluster"  # the name of the only resource of its type
NOT_AUTHORISED, GROUP_NOT_AUTHORISED, CLUSTER_NOT_AUTHORISED = 29, 30, 31  # Kafka's error codes


class ConfiguredCluster(Protocol):
    """A cluster as it is configured (`app.kafka.client.cluster.ClusterSpec`)."""

    @property
    def name(self) -> str: ...
    @property
    def bootstrap(self) -> Sequence[str]: ...
    @property
    def username(self) -> str | None: ...


def principal(cluster: ConfiguredCluster) -> str:
    """As which user a cluster knows Switchyard, as far as its configuration says."""
    return f"User:{cluster.username or PLACEHOLDER}"


def lacks(cluster: ConfiguredCluster, resource: Resource, name: str, operation: str) -> str:
    """Which permission is missing, for people: "User:switchyard lacks Read on topic orders in east"."""
    what = f"cluster {cluster.name}" if resource == "cluster" else f"{resource} {name} in {cluster.name}"
    return f"{principal(cluster)} lacks {operation} on {what}"


def allow(cluster: ConfiguredCluster, resource: Resource, name: str, *operations: str) -> str:
    """The command that grants these."""
    asked = " ".join(f"--operation {operation}" for operation in operations)
    what = "--cluster" if resource == "cluster" else f"--{resource} {name}"
    return (
        f"kafka-acls.sh --bootstrap-server {cluster.bootstrap[0]} --add "
        f"--allow-principal '{principal(cluster)}' {asked} {what}"
    )


def grant(cluster: ConfiguredCluster, resource: Resource, name: str, *operations: str) -> str:
    """The same as a remedy."""
    return f"grant it: {allow(cluster, resource, name, *operations)}; {ITSELF}"
