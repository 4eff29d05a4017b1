"""`Failover`: regions that share topics, and between which workloads move. The shape of its definition.

    kind: Failover
    metadata: {name: orders, owner: platform}
    spec:
      regions: [east, west]                   # in order of priority: workloads begin in the first
      topics: [orders, 'payments\\..*']        # as in a Route
      exclude: ['.*\\.test']

It is deployed with the same text in every region. From it each region derives the routes that lead into it
(`app.failover.topology`), and where a workload with a mode begins (`app.controllog.roles`).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Len
from pydantic import BeforeValidator, Field

from app.config.definition_base import Named
from app.config.fields import MAX_LISTED, Model
from app.config.fields import Name as AnyName
from app.config.settings import Name as RegionName
from app.controllog.roles import MAX_REGIONS
from app.failover.topology import RESERVED, DerivedRoute, Failover
from app.replicate.definition import MAX_RECORDS, Entry, Limits, RouteDefinition

PREFIX = "failover:"  # no workload's nor route's key begins with it
MAX_NAME_CHARS = 80  # with two regions' names, a route's name of at most 200 is made of it


def _name(value: object) -> object:
    if isinstance(value, str) and (len(value) > MAX_NAME_CHARS or value.startswith(RESERVED)):
        raise ValueError(
            f"not a name for it; use at most {MAX_NAME_CHARS} characters, and no {RESERVED} at the beginning"
        )
    return value


def _regions(value: object) -> object:
    if isinstance(value, list | tuple) and len(set(map(str, value))) < len(value):
        raise ValueError("names a region twice; name each once, in order of priority")
    return value


Regions = Annotated[tuple[RegionName, ...], BeforeValidator(_regions), Len(2, MAX_REGIONS)]


class FailoverMetadata(Model):
    """The definition's identity (its name) and its owner."""

    name: Annotated[AnyName, BeforeValidator(_name)]
    owner: str = Field("", max_length=200)


class FailoverSpec(Model):
    """Which regions, in order of priority, and which topics they share: each region's aggregate cluster gets
    what is written in any region's regional one. `limits` are those of each route made of it."""

    regions: Regions
    topics: Annotated[tuple[Entry, ...], Len(1, MAX_LISTED)]
    exclude: Annotated[tuple[Entry, ...], Len(0, MAX_LISTED)] = ()
    limits: Limits = Limits()


class FailoverDefinition(Named):
    """Regions that share topics, and between which workloads move."""

    api_version: Literal["switchyard/v1"] = Field(alias="apiVersion")
    prefix: ClassVar[str] = PREFIX
    kind: Literal["Failover"]
    metadata: FailoverMetadata
    spec: FailoverSpec

    def failover(self) -> Failover:
        """What routes and roles are derived from."""
        return Failover(self.name, self.spec.regions, self.spec.topics, self.spec.exclude)


def route_definition(derived: DerivedRoute, made_by: FailoverDefinition) -> RouteDefinition:
    """The definition of a derived route."""
    limits = made_by.spec.limits.model_dump(mode="json", by_alias=True, exclude_none=True)
    checkpoint: dict[str, Any] = {}
    if derived.is_control:
        limits = {"priority": "high"}  # little, and what others go by when a region is lost
        checkpoint = {"every": "1h", "records": MAX_RECORDS}  # nobody maps positions in them
    start = "latest" if derived.from_end else "earliest"
    return RouteDefinition.model_validate(
        {
            "apiVersion": "switchyard/v1",
            "kind": "Route",
            "metadata": {"name": derived.name, "owner": made_by.metadata.owner},
            "spec": {
                "from": derived.source,
                "to": derived.target,
                "topics": derived.topics,
                "exclude": derived.exclude,
                "limits": limits,
                "checkpoint": checkpoint,
                "start": start,
            },
        }
    )
