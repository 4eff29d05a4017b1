"""`Route`: topics of one cluster that are copied to another. The shape of its definition.

    kind: Route
    metadata: {name: east-to-west, owner: platform}
    spec:
      from: east-regional
      to: west-aggregate
      topics: [orders, 'payments\\..*']        # a name, or an expression for whole names
      exclude: ['.*\\.test']
      rename: "{cluster}.{topic}"             # MirrorMaker 2's source.topic; without it names stay

`app.replicate.model.route` defines the entries of `topics`, and the internal topics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

from annotated_types import Ge, Len
from pydantic import BeforeValidator, Field, Strict, model_validator

from app.config.definition_base import Definition, added
from app.config.fields import DAY_S, MAX_LISTED, Label, Model, Name, Rate
from app.config.quantities import Duration, Size, duration_within
from app.kernel.job import MAX_TOPIC_CHARS, JobId, Kind
from app.kernel.json_types import JsonObject
from app.replicate.model.destination_topic import Smaller, TopicSync
from app.replicate.model.name_patterns import MAX_EXPRESSION_CHARS, AnyOf, check_expression, is_name
from app.replicate.model.route import TOPIC, Route, is_topic
from app.replicate.model.route import TopicRename as RenameRule

REPLICATE_JOBS = f"{Kind.REPLICATE.value}:"  # begins the name of every job of a route
MAX_RECORDS = 10**9  # in practice no limit: only the interval counts


def _topic(value: object) -> object:
    if not isinstance(value, str) or not is_topic(value):
        raise ValueError(
            f"not a topic's name; use letters, digits, '.', '_' and '-', at most {MAX_TOPIC_CHARS}"
        )
    return value


def _entry(value: object) -> object:
    """A topic's name, or an expression."""
    if not isinstance(value, str) or not value:
        raise ValueError("not a name or expression; write one like orders or 'orders\\..*'")
    if is_name(value):
        return _topic(value)
    check_expression(value)
    return value


def _text_entry(value: object) -> object:
    """A group's or header's name, or an expression."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_EXPRESSION_CHARS:
        raise ValueError(f"not a name or expression; write text of 1 to {MAX_EXPRESSION_CHARS} characters")
    AnyOf([value])
    return value


def _template(value: object) -> object:
    if not isinstance(value, str):
        raise ValueError("not a template; write one like '{cluster}.{topic}'")
    RenameRule.of(value, cluster="x")
    return value


TopicName = Annotated[str, BeforeValidator(_topic)]
Entry = Annotated[str, BeforeValidator(_entry)]
Template = Annotated[str, BeforeValidator(_template), Len(1, MAX_TOPIC_CHARS)]
TextEntry = Annotated[str, BeforeValidator(_text_entry)]
TextEntries = Annotated[tuple[TextEntry, ...], Len(1, MAX_LISTED)]


class RouteMetadata(Model):
    """The route's identity (its name) and its owner."""

    name: Name
    owner: str = Field("", max_length=200)


class Rename(Model):
    """The copies' names: what `from` fits becomes `to`; other topics keep their names. `names` come first.

    A template alone stands for `to`; `identity` for names that stay.
    """

    before: Template = Field(TOPIC, alias="from")
    after: Template = Field(TOPIC, alias="to")
    names: dict[TopicName, TopicName] = Field({}, max_length=MAX_LISTED)

    @model_validator(mode="before")
    @classmethod
    def _alone(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        return {} if value == "identity" else {"to": value}


def _or_template(schema: JsonObject) -> None:
    """The JSON Schema of a rename: also a template alone."""
    whole = {"$ref": schema.pop("$ref")}
    schema["anyOf"] = [{"type": "string", "examples": ["{cluster}.{topic}", "identity"]}, whole]


class Headers(Model):
    """Which headers are copied: only those of `keep`, or all but those of `drop`; names, or expressions.

    With `provenance` each copy names its source. Either option makes the route encode every record again,
    which takes far longer than copying batches as they are.
    """

    keep: TextEntries | None = None
    drop: TextEntries | None = None
    provenance: bool = False


class Offsets(Model):
    """Consumer groups whose positions are kept in step at the destination: names, or expressions.

    An exclusion always wins."""

    groups: TextEntries
    exclude: Annotated[tuple[TextEntry, ...], Len(0, MAX_LISTED)] = ()
    every: Annotated[Duration, duration_within(1, DAY_S)] = 60.0


class Limits(Model):
    """How much the route copies a second, and which routes come first.

    The limits hold for all its topics and all workers of a region together; the region divides them by need
    (`app.kernel.limit_shares`). On a worker with a backlog, routes of a higher priority get the larger share
    (`app.replicate.model.route_priority`).
    """

    messages_per_second: Rate | None = None
    bytes_per_second: Annotated[Size, Ge(1)] | None = None
    priority: Literal["low", "normal", "high"] = "normal"

    @property
    def is_limited(self) -> bool:
        return bool(self.messages_per_second or self.bytes_per_second)


class Sync(Model):
    """Which properties of source topics the destination topics get (`app.replicate.model.destination_topic`).

    A topic that had records before any route wrote to it keeps its `cleanup.policy` and its settings of
    retention and compaction. `adopt: true` lets them follow the source, which may delete those records.

    `leave` lists settings that the route never touches. `replication` is the factor of the topics that it
    creates: 3 unless there are fewer brokers. Access lists are not copied.

    `onSmallerLimits` decides when limits of the destination (`max.message.bytes`,
    `message.timestamp.before.max.ms`, `message.timestamp.after.max.ms`) are below the source's, and cannot be
    raised. `block` copies nothing to that topic. `copy` copies batches as they are, and one that does not fit
    waits. `divide` takes such a batch apart, and only a record that does not fit waits. The route shows its
    offset. The records behind it in its partition wait, too, until an operator raises the limit or skips it.
    """

    create: bool = True
    partitions: bool = True
    configuration: bool = True
    adopt: bool = added(False)
    leave: Annotated[tuple[Label, ...], Len(0, MAX_LISTED)] = ()
    replication: Annotated[int, Strict()] | None = Field(None, ge=1, le=100)
    on_smaller_limits: Smaller = Field("divide", alias="onSmallerLimits")


class Checkpoint(Model):
    """How often the offset map gets an entry, a partition: whichever comes first."""

    every: Annotated[Duration, duration_within(0.1, 3600)] = 10.0
    records: Annotated[int, Strict()] = Field(100_000, ge=1, le=MAX_RECORDS)


class GroupSync(NamedTuple):
    """Which consumer groups are kept in step at the destination, by their names, and how often."""

    groups: Callable[[str], bool]
    every_s: float


class RouteSpec(Model):
    """Which topics the route copies, and how.

    `onGap`: the route's reaction when records were deleted before they were copied, or when the topic was
    truncated or created again. The route reports it in either case. `start`: where a topic begins that was
    never copied before. `verify`: the route reads copies back and compares them. It samples fast flows, or
    reads all records, which costs about as much again as copying.
    """

    source: Name = Field(alias="from")
    target: Name = Field(alias="to")
    topics: Annotated[tuple[Entry, ...], Len(1, MAX_LISTED)]
    exclude: Annotated[tuple[Entry, ...], Len(0, MAX_LISTED)] = ()
    rename: Rename = Field(Rename(), json_schema_extra=_or_template)
    headers: Headers = Headers()
    offsets: Offsets | None = None
    limits: Limits = Limits()
    sync: Sync = Sync()
    checkpoint: Checkpoint = Checkpoint()
    on_gap: Literal["continue", "stop"] = Field("continue", alias="onGap")
    start: Literal["earliest", "latest"] = "earliest"
    verify: Literal["sampled", "all"] = "sampled"


class RouteDefinition(Definition):
    """Topics of one cluster that are copied to another."""

    api_version: Literal["switchyard/v1"] = Field(alias="apiVersion")
    kind: Literal["Route"]
    metadata: RouteMetadata
    spec: RouteSpec

    @property
    def key(self) -> str:
        """The route's name."""
        return self.metadata.name

    def route(self) -> Route:
        """The topics that it copies, and the names of the copies.

        Raises:
            TooComplicated: Its entries together are too complicated.
        """
        spec = self.spec
        rename = RenameRule.of(spec.rename.before, spec.rename.after, spec.rename.names, cluster=spec.source)
        return Route(self.key, spec.source, spec.target, spec.topics, spec.exclude, rename)

    def keeps_header(self) -> Callable[[str], bool] | None:
        """Whether a header, given by its name, is copied; None: all are."""
        headers = self.spec.headers
        if headers.keep is not None:
            return AnyOf(headers.keep)
        if headers.drop is None:
            return None
        dropped = AnyOf(headers.drop)
        return lambda name: not dropped(name)

    @property
    def offsets(self) -> GroupSync | None:
        """The consumer groups that are kept in step; None: none. Built on each call, so callers keep it."""
        offsets = self.spec.offsets
        if offsets is None:
            return None
        means, excluded = AnyOf(offsets.groups), AnyOf(offsets.exclude)
        return GroupSync(lambda group: means(group) and not excluded(group), offsets.every)

    def topic_sync(self) -> TopicSync:
        """The changes that the route allows at its destination topics."""
        sync = self.spec.sync
        return TopicSync(
            sync.create, sync.partitions, sync.configuration, sync.leave, sync.on_smaller_limits, sync.adopt
        )


def replicate_job(name: str, topic: str, partition: int) -> JobId:
    """The job of a route's partition. Raises ValueError: no job can have that name."""
    return JobId(Kind.REPLICATE, name, topic, partition)
