"""The `Failover` definition: regions that share topics, and that workloads can move between.

    kind: Failover metadata: {name: orders, owner: platform} spec:
      regions: [east, west]                   # in order of priority: workloads begin in the first
      topics: [orders, 'payments\\..*']        # as in a Route
      exclude: ['.*\\.test']

Every region gets the same text. Each region derives from it the routes that lead into the region
(`app.failover.topology`), and the first region of a workload with a mode (`app.controllog.roles`).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from annotated_types import Len
from pydantic import BeforeValidator, Field

from app.config.definition_base import Named
from app.config.fields import MAX_LISTED, Model
from app.config.fields import Name as AnyName
from app.config.settings import Name as RegionName
from app.controllog.roles import MAX_REGIONS
from app.failover.topology import RESERVED, DerivedRoute, Failover
from app.kernel.json_types import JsonObject
from app.replicate.definition import MAX_RECORDS, Entry, Limits, RouteDefinition

PREFIX = "failover:"  # the key of no workload or route begins with it
MAX_NAME_CHARS = 80  # with the names of two regions it becomes a route's name, of at most 200


def _name(value: object) -> object:
    if isinstance(value, str) and (len(value) > MAX_NAME_CHARS or value.startswith(RESERVED)):
        raise ValueError(
            f"not a valid name; use at most {MAX_NAME_CHARS} characters, and do not begin with {RESERVED}"
        )
    return value


def _regions(value: object) -> object:
    if isinstance(value, list | tuple) and len(set(map(str, value))) < len(value):
        raise ValueError("names a region twice; name each once, in order of priority")
    return value


Regions = Annotated[tuple[RegionName, ...], BeforeValidator(_regions), Len(2, MAX_REGIONS)]


class FailoverMetadata(Model):
    """The name, which identifies the definition, and its owner."""

    name: Annotated[AnyName, BeforeValidator(_name)]
    owner: str = Field("", max_length=200)


class FailoverSpec(Model):
    """The regions in order of priority, and the topics that they share.

    Each region's aggregate cluster gets the records that producers write to any region's regional cluster.
    `limits` apply to each derived route.
    """

    regions: Regions
    topics: Annotated[tuple[Entry, ...], Len(1, MAX_LISTED)]
    exclude: Annotated[tuple[Entry, ...], Len(0, MAX_LISTED)] = ()
    limits: Limits = Limits()


class FailoverDefinition(Named):
    """Regions that share topics, and that workloads can move between."""

    api_version: Literal["switchyard/v1"] = Field(alias="apiVersion")
    prefix: ClassVar[str] = PREFIX
    kind: Literal["Failover"]
    metadata: FailoverMetadata
    spec: FailoverSpec

    def failover(self) -> Failover:
        """The part that routes and roles are derived from."""
        return Failover(self.name, self.spec.regions, self.spec.topics, self.spec.exclude)


def route_definition(derived: DerivedRoute, made_by: FailoverDefinition) -> RouteDefinition:
    """The definition of a derived route, with the limits and owner of the failover definition."""
    limits = made_by.spec.limits.model_dump(mode="json", by_alias=True, exclude_none=True)
    checkpoint: JsonObject = {}
    if derived.is_control:
        limits = {"priority": "high"}  # they are few, and other regions need them when this one is lost
        # no consumer moves between copies of control topics
        checkpoint = {"every": "1h", "records": MAX_RECORDS}
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
