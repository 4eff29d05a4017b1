"""Permissions that Switchyard's principal lacks in a cluster, and the command that grants them."""

from __future__ import annotations

from typing import Literal

from app.kafka.clusters import ClusterSpec

Resource = Literal["topic", "group", "cluster", "transactional-id"]

PLACEHOLDER = "<Switchyard's principal>"  # of a certificate or a token the broker makes the name


def principal(spec: ClusterSpec) -> str:
    """As which user a cluster knows Switchyard, as far as its configuration says."""
    return f"User:{spec.username or PLACEHOLDER}"


def lacks(spec: ClusterSpec, resource: Resource, name: str, *operations: str) -> str:
    """Which of Kafka's permissions are missing, for people: "User:switchyard lacks Read on topic orders"."""
    what = "the cluster" if resource == "cluster" else f"{resource} {name}"
    return f"{principal(spec)} lacks {' and '.join(operations)} on {what} in {spec.name}"


def allow(spec: ClusterSpec, resource: Resource, name: str, *operations: str) -> str:
    """The command that grants them."""
    asked = " ".join(f"--operation {operation}" for operation in operations)
    what = "--cluster" if resource == "cluster" else f"--{resource} {name}"
    return (
        f"kafka-acls.sh --bootstrap-server {spec.bootstrap[0]} --add "
        f"--allow-principal '{principal(spec)}' {asked} {what}"
    )
