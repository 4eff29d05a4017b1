"""Names the permissions that Switchyard's principal lacks in a cluster, and the command that grants them.

Brokers require Read to fetch and Write to append, each of which includes Describe, and Read on the group
to commit. Routes create destination topics and keep their settings equal to the source: Create, Alter,
DescribeConfigs, AlterConfigs. A principal that may write to any topic may be an idempotent producer;
before Kafka 2.8 this needs IdempotentWrite on the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

Resource = Literal["topic", "group", "cluster"]

PLACEHOLDER = "<Switchyard's principal>"  # with a certificate or a token, the broker decides the name
CLUSTER = "kafka-cluster"  # the name of the only resource of its type
NOT_AUTHORISED, GROUP_NOT_AUTHORISED, CLUSTER_NOT_AUTHORISED = 29, 30, 31  # Kafka's error codes


class ConfiguredCluster(Protocol):
    """A configured cluster (`app.kafka.client.cluster.ClusterSpec`)."""

    @property
    def name(self) -> str: ...
    @property
    def bootstrap(self) -> Sequence[str]: ...
    @property
    def username(self) -> str | None: ...


def principal(cluster: ConfiguredCluster) -> str:
    """Switchyard's user in the cluster, as far as the configuration says."""
    return f"User:{cluster.username or PLACEHOLDER}"


def lacks(cluster: ConfiguredCluster, resource: Resource, name: str, operation: str) -> str:
    """The missing permission: "User:switchyard lacks Read on topic orders in east"."""
    what = f"cluster {cluster.name}" if resource == "cluster" else f"{resource} {name} in {cluster.name}"
    return f"{principal(cluster)} lacks {operation} on {what}"


def allow(cluster: ConfiguredCluster, resource: Resource, name: str, *operations: str) -> str:
    options = " ".join(f"--operation {operation}" for operation in operations)
    what = "--cluster" if resource == "cluster" else f"--{resource} {name}"
    return (
        f"kafka-acls.sh --bootstrap-server {cluster.bootstrap[0]} --add "
        f"--allow-principal '{principal(cluster)}' {options} {what}"
    )


def grant(cluster: ConfiguredCluster, resource: Resource, name: str, *operations: str) -> str:
    return f"grant it: {allow(cluster, resource, name, *operations)}; the worker retries by itself"
