"""`AuditPlan`: the definition of which topics are counted, in which clusters and by which event time.

    kind: AuditPlan
    metadata: {name: orders, owner: data-platform}
    spec:
      clusters: [regional, east-aggregate]    # names, or tiers of this region; default: all its clusters
      topics: [orders, 'payments\\..*']        # as in a Route
      exclude: ['.*\\.test']
      window: 10m
      timestamp: {source: json, field: meta.createdAt, format: iso-8601, otherwise: record}
      id: {header: message-id}

If several plans match a topic of a cluster, the first by name counts it (`app.audit.topics.catalog`).
"""

from __future__ import annotations

import zlib
from typing import Annotated, ClassVar, Literal

import orjson
from annotated_types import Len
from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema

from app.audit.folds.plan_terms import PREFIX, bounds_of
from app.audit.folds.tier import CONSUMER, PlanBounds
from app.config.definition_base import OfTopics
from app.config.fields import DAY_S, MAX_LISTED, Header, MessageName, Model, Name
from app.config.quantities import DURATION_SCHEMA, Duration, duration_within
from app.failover.topology import Layout
from app.kernel.durations import format_duration, parse_duration
from app.kernel.job import Kind
from app.replicate.definition import Entry

AUDIT_JOBS = f"{Kind.AUDIT.value}:"  # begins the name of every job of a plan
MAX_NAME_CHARS = 100  # job names contain it, with a cluster's name
SEPARATOR = "//"  # between plan and cluster; no workload's key contains it


def _name(value: object) -> object:
    if isinstance(value, str) and len(value) > MAX_NAME_CHARS:
        raise ValueError(f"the name is too long; use at most {MAX_NAME_CHARS} characters")
    return value


def _disorder(value: object) -> object:
    if value == "any":
        return value
    try:
        seconds = parse_duration(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= DAY_S:
        raise ValueError("not a duration of 0s to 1d; write any, or a duration such as 5s")
    return seconds


def _disorder_text(value: str | float) -> str:
    return value if isinstance(value, str) else format_duration(value)


Disorder = Annotated[
    Literal["any"] | float,
    PlainValidator(_disorder),
    PlainSerializer(_disorder_text, return_type=str),
    WithJsonSchema({"anyOf": [{"const": "any"}, *DURATION_SCHEMA]}),
]


class AuditMetadata(Model):
    """The plan's name and its owner."""

    name: Annotated[Name, BeforeValidator(_name)]
    owner: str = Field("", max_length=200)


class Timestamp(Model):
    """The event time of a record. It decides the record's window, so all tiers count it in the same one.

    `header` is a header's name; `binary` means 8 bytes in big-endian order. `field` is a path in the value,
    such as meta.createdAt. The value's schema is a file below the folder `schemas` of each worker's
    switchyard.yaml: `schema` (Avro), or `descriptor` and `message` (Protobuf). With framing confluent it is a
    folder. `otherwise` is the time of a record without such a time: its own timestamp, or none.
    """

    source: Literal["record", "header", "json", "avro", "protobuf"] = "record"
    header: Header | None = None
    field: Annotated[str, Len(1, 1000)] | None = None
    format: Literal["epoch-s", "epoch-ms", "epoch-us", "epoch-ns", "iso-8601"] | None = None
    binary: bool = False
    schema_: Annotated[str, Len(1, 4096)] | None = Field(None, alias="schema")
    descriptor: Annotated[str, Len(1, 4096)] | None = None
    message: MessageName | None = None
    framing: Literal["none", "confluent"] = "none"
    otherwise: Literal["record", "none"] = "record"


class MessageId(Model):
    """The header with a message's id, the same at every tier. It reveals other messages behind equal counts.

    `fingerprint` covers ids alone, or ids with values. With values it also reveals a message that arrived
    with another value. It covers the bytes of values, not headers and keys, so a route may change these. Do
    not use it where something on the way encodes values again: every window would look corrupted. Clients
    report ids alone, and are compared by these.
    """

    header: Header
    fingerprint: Literal["ids", "values"] = "ids"


class AuditSpec(Model):
    """Which topics and tiers the audit counts, and how.

    Each of the `tiers` that counts the topic is compared with the next one. The audit reports a tier as
    absent if the plan names it and it counts nothing. With `consumer` among them, or without `tiers`, the
    audit also counts what workloads finish.

    `lateness`: how long a window waits at least for late records. `keep`: how long windows are remembered.

    `disorder`: how much older than the first record of its batch a record may be. With `any`, the default,
    the audit reads the timestamps of all records (0.2 microseconds each, and decompression). With a time, it
    counts whole batches from their headers. Records older than that time are counted in a later window.
    Copies in other batches may then show a loss that did not happen.
    """

    clusters: Annotated[tuple[Name, ...], Len(0, MAX_LISTED)] = ()
    topics: Annotated[tuple[Entry, ...], Len(1, MAX_LISTED)]
    exclude: Annotated[tuple[Entry, ...], Len(0, MAX_LISTED)] = ()
    tiers: Annotated[tuple[Name, ...], Len(0, 20)] = ()
    window: Annotated[Duration, duration_within(1, DAY_S)] = 600.0
    lateness: Annotated[Duration, duration_within(1, DAY_S)] = 60.0
    disorder: Disorder = "any"
    keep: Annotated[Duration, duration_within(3600, 90 * DAY_S)] = 7 * DAY_S
    timestamp: Timestamp = Timestamp()
    id: MessageId | None = None


class AuditPlan(OfTopics):
    """Topics whose records are counted."""

    api_version: Literal["switchyard/v1"] = Field(alias="apiVersion")
    prefix: ClassVar[str] = PREFIX
    kind: Literal["AuditPlan"]
    metadata: AuditMetadata
    spec: AuditSpec

    def clusters(self, layout: Layout) -> list[str]:
        """The names of the configured clusters whose topics the plan counts."""
        if not self.spec.clusters:
            return sorted(name for name, site in layout.sites.items() if site.region == layout.own)
        found = set()
        for entry in self.spec.clusters:
            of_tier = {
                n for n, site in layout.sites.items() if (site.region, site.tier) == (layout.own, entry)
            }
            found |= {entry} if entry in layout.sites else of_tier
        return sorted(found)

    @property
    def by_value(self) -> bool:
        """Whether the event time is not the record's timestamp."""
        return self.spec.timestamp.source != "record"

    @property
    def counts_consumers(self) -> bool:
        """Whether the plan also counts what workloads finish."""
        return not self.spec.tiers or CONSUMER in self.spec.tiers

    @property
    def bounds(self) -> PlanBounds:
        """When the plan's windows close, and when they are dropped."""
        return bounds_of(self.spec.lateness, self.spec.keep)

    @property
    def counting(self) -> int:
        """A checksum (32 bits) of the settings that decide a record's window."""
        wire = self.to_wire()["spec"]
        settings = [wire[name] for name in ("window", "timestamp", "disorder")]
        return zlib.crc32(orjson.dumps(settings, option=orjson.OPT_SORT_KEYS))

    @property
    def width_ms(self) -> int:
        """The width of a window."""
        return round(self.spec.window * 1000)


def job_name(plan: str, cluster: str) -> str:
    """The name of the jobs that count a cluster's topics for a plan."""
    return f"{plan}{SEPARATOR}{cluster}"


def of_job_name(name: str) -> tuple[str, str]:
    """The inverse of `job_name`: plan and cluster."""
    plan, _, cluster = name.partition(SEPARATOR)
    return plan, cluster
