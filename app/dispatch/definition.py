"""`Workload`: a group's consumption of a topic, pushed to its receiver. The shape of its definition."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import ConfigDict, Field, Strict

from app.config.definition_base import Definition, added
from app.config.fields import (
    DAY_S,
    MAX_LISTED,
    Address,
    Delay,
    Header,
    HeaderPattern,
    Inflight,
    Label,
    MessageName,
    Method,
    Model,
    Name,
    Rate,
)
from app.config.quantities import Duration, Size, duration_within
from app.dispatch.model.dead_letter_budget import (
    DEAD_LETTER_BURST,
    DEAD_LETTER_SHARE,
    DEAD_LETTERS_PER_MINUTE,
)

MAX_LAG_MESSAGES = 2**53  # what JSON counts exactly
TIMEOUT_S = 10.0
HEAD_OF_LINE_S = 300.0  # the default of `headOfLine.after`, and at least so many timeouts:
HEAD_TIMEOUTS = 2
MAX_LETTERS = 1_000_000  # that may be saved up; who wants more sets `share: 1`
MAX_MERGES = 1000  # who merges more often has no use for the limit


class Metadata(Model):
    """The identity of a workload (group and topic), its cluster and its owner."""

    group: Name
    topic: Name
    cluster: Name = Field(
        description="The cluster that has the topic. With a `spec.mode`, any one region's: each region reads "
        "its own cluster of the same tier, so that the same definition is deployed in all of them."
    )
    owner: str = Field("", max_length=200)


class Target(Model):
    """The receiver. The contract `auto`: stream when the receiver implements it, else unary, until it does.

    With `stream`, messages wait for a receiver that refuses the stream; it is tried again every second.
    """

    address: Address
    contract: Literal["unary", "stream", "auto"] = "unary"
    method: Method | None = None
    timeout: Annotated[Duration, duration_within(0.001, 3600)] = TIMEOUT_S


class Flow(Model):
    """How much the receiver gets at once.

    The rates, and a number of messages in flight, hold for all workers of a region together. The region
    divides them by need (`app.kernel.limit_shares`). Each worker finds `adaptive` for itself.
    """

    max_inflight: Inflight = "adaptive"
    messages_per_second: Rate | None = None
    bytes_per_second: Annotated[Size, Ge(1)] | None = None

    @property
    def is_limited(self) -> bool:
        """Whether there is anything to divide."""
        return self.max_inflight != "adaptive" or bool(self.messages_per_second or self.bytes_per_second)


class TrackerSpec(Model):
    """How many messages may wait between the commit and the newest fetched, a partition."""

    capacity: Annotated[int, Strict()] = Field(default=10_000, ge=1, le=1_000_000)


class HeadOfLine(Model):
    """When a message that blocks its partition is stashed, and where.

    A workload stashes at most `perMinute`; its workers share that as they share its jobs. A worker may
    always stash one, however small its share.

    Without `after`: 5 minutes, or twice `target.timeout` where that is longer. Less than the timeout gives up
    handlers that may still answer.
    """

    after: Annotated[Duration, duration_within(0.001, 30 * DAY_S)] | None = None
    stash: Literal["dlq", "retry"] = "dlq"
    per_minute: Rate = added(10.0, alias="perMinute")


class RetryTier(Model):
    """A retry topic: how long a message waits in it, and how often it is tried from it."""

    delay: Delay
    attempts: Annotated[int, Strict()] = Field(default=3, ge=1, le=1000)


class Dlq(Model):
    """The dead letter queue. A message that was merged from it `maxMerges` times is quarantined next time.

    A receiver that fails every message must not flush its topic into it. So failed messages may be at most
    `share` of those that finish (1: no limit). `perMinute` more may fail, shared among workers as jobs are.
    Each worker allows 10 at once, and acknowledgements save up `burst`. Beyond that, failed messages wait and
    are tried again, with their attempts unburnt. Messages that the receiver or an operator stashes are free.
    """

    enabled: bool = True
    max_merges: Annotated[int, Strict()] = added(3, alias="maxMerges", ge=0, le=MAX_MERGES)
    share: Annotated[float, Strict()] = added(DEAD_LETTER_SHARE, ge=0, le=1)
    per_minute: Rate = added(DEAD_LETTERS_PER_MINUTE, alias="perMinute")
    burst: Annotated[int, Strict()] = added(DEAD_LETTER_BURST, ge=1, le=MAX_LETTERS)


class IsolationTarget(Model):
    """A receiver for messages of an environment, of a zone, or of a zone of an environment.

    Without an environment it is one of production: no other environment's messages ever reach it. `fallback`
    names another zone of the same environment: its target gets the messages once this one has been away for
    `fallbackAfter`, until it is back. Without one they wait.
    """

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["environment"]}, {"required": ["zone"]}]}
    )

    environment: Label | None = None
    zone: Label | None = None
    address: Address
    fallback: Label | None = added(None)


class Isolation(Model):
    """Headers by which messages are routed apart, and the receivers beside the main target.

    An unknown zone falls back to the target without one. An unknown environment does what `unmatched` says
    and reaches the main target only with `default`. `production` are the values that mean the main target,
    as does a message without the header. Messages for a production target wait until that target is there.
    """

    zone: Header | None = None
    environment: Header | None = None
    targets: tuple[IsolationTarget, ...] = added((), max_length=MAX_LISTED)
    fallback_after: Annotated[Duration, duration_within(0, DAY_S)] = added(60.0, alias="fallbackAfter")
    unmatched: Literal["dlq", "skip", "default"] = added("dlq")
    production: tuple[Label, ...] = added(("production", "prod"), max_length=MAX_LISTED)


class Protobuf(Model):
    """The payload's type: a message of a file of descriptors, or of a folder that is a registry.

    `descriptor` is relative to the folder `schemas` of each worker's switchyard.yaml, and lies below it.

    Framing `confluent`: behind a magic byte, the schema's id and the message's indexes.

    `deliver`: `bytes` is the message as Protobuf writes it, which generated code reads. It has no frame; the
    frame's schema id goes into the metadata `switchyard-schema-id`. `record` is the record's value as it is,
    with its frame. `json` is the message as JSON.
    """

    descriptor: str = Field(min_length=1, max_length=4096)
    message: MessageName
    framing: Literal["raw", "confluent"] = added("raw")
    deliver: Literal["bytes", "record", "json"] = added("bytes")
    invalid: Literal["dlq", "deliver"] = added("deliver")


class Payload(Model):
    """What the payload is."""

    protobuf: Protobuf | None = None


class CatchUp(Model):
    """When to jump to the latest, and how fast the backlog is worked off beside it."""

    lag: Annotated[int, Strict()] = Field(ge=1, le=MAX_LAG_MESSAGES)
    rate: Rate


class Headers(Model):
    """Which record headers the receiver gets, over either contract.

    It gets those that `allow` names (without it all), except those that `deny` names. An entry is a name, or
    the beginning of names and a `*`; case does not count. The receiver gets no `traceparent` that these
    leave out. Interceptors see all headers, and copies in retry topics and the DLQ keep them.
    """

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["allow"]}, {"required": ["deny"]}]})

    allow: tuple[HeaderPattern, ...] | None = Field(None, max_length=MAX_LISTED)
    deny: tuple[HeaderPattern, ...] = added((), max_length=MAX_LISTED)


class Placement(Model):
    """Where its jobs run: on workers of this isolation group only (`worker.group` in switchyard.yaml)."""

    group: Name


class Hibernate(Model):
    """A workload that was idle so long has no jobs until something waits for it again."""

    after: Annotated[Duration, duration_within(60, 30 * DAY_S)]


class Spec(Model):
    """How the messages are delivered.

    `mode`: how a workload of several regions runs. With `active-active` it runs in all of them; each message
    tells the receiver which region is primary. With `active-passive` it runs in the active region only.
    `primary` is the region that it begins in. Its default is the first region of the Failover definition that
    shares the topic. Editing it later moves nothing: a failover does.
    """

    mode: Literal["active-active", "active-passive"] | None = None
    primary: Name | None = None
    target: Target
    ordering: Literal["none", "key", "partition"] = "none"
    flow: Flow = Flow()
    tracker: TrackerSpec = TrackerSpec()
    head_of_line: HeadOfLine | None = Field(None, alias="headOfLine")
    retry: tuple[RetryTier, ...] = Field((), max_length=10)
    dlq: Dlq = Dlq()
    delay: Delay = 0.0
    not_before: Literal["header", "ignore"] = added(
        "header",
        alias="notBefore",
        description="`header`: the record header `not-before` delays its message by 30 days at most. It is "
        "ISO-8601 with an offset, or a number since 1970: below 1e11 seconds, below 1e14 milliseconds, below "
        "1e17 microseconds, else nanoseconds. `ignore`: the header is like any other.",
    )
    headers: Headers | None = None
    isolation: Isolation | None = None
    payload: Payload | None = None
    catch_up: CatchUp | None = Field(None, alias="catchUp")
    start: Literal["earliest", "latest"] = "earliest"
    placement: Placement | None = None
    hibernate: Hibernate | None = None


class Workload(Definition):
    """A group's consumption of a topic, pushed to its receiver."""

    api_version: Literal["switchyard/v1"] = Field(alias="apiVersion")
    kind: Literal["Workload"]
    metadata: Metadata
    spec: Spec

    @property
    def key(self) -> str:
        """ "group/topic", the workload's name everywhere."""
        return f"{self.metadata.group}/{self.metadata.topic}"

    def retry_topics(self) -> tuple[str, ...]:
        """The topics of the retry tiers, in order."""
        stem = f"{self.metadata.topic}__{self.metadata.group}__retry_"
        return tuple(f"{stem}{number + 1}" for number in range(len(self.spec.retry)))

    def dlq_topic(self) -> str:
        """The dead letter queue's topic."""
        return f"{self.metadata.topic}__{self.metadata.group}__dlq"

    def delayed_topic(self) -> str:
        """The topic of messages that are due far ahead, a partition for each level
        (`app.dispatch.model.delayed_delivery`)."""
        return f"{self.metadata.topic}__{self.metadata.group}__delayed"

    def merge_topic(self) -> str:
        """The topic that letters merged from the DLQ go to: read like a retry tier without a delay."""
        return f"{self.metadata.topic}__{self.metadata.group}__merge"

    def own_topics(self) -> tuple[str, ...]:
        """All topics that it may have beside the one that it reads."""
        return (*self.retry_topics(), self.dlq_topic(), self.merge_topic(), self.delayed_topic())

    def head_of_line_after_s(self) -> float:
        """How long a message may block its partition: never less by default than a call and its second."""
        spec = self.spec
        after_s = None if spec.head_of_line is None else spec.head_of_line.after
        return max(HEAD_OF_LINE_S, HEAD_TIMEOUTS * spec.target.timeout) if after_s is None else after_s

    def method(self) -> str:
        """The gRPC method: its own, or that of uForwarder's consumers."""
        own = self.spec.target.method
        return own or f"/kafka.consumerproxy.{self.metadata.group}/{self.metadata.topic}"
