"""The shape of a `Workload` definition: a group's consumption of a topic, delivered to its receiver."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge
from pydantic import AfterValidator, ConfigDict, Field, Strict

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
    ServerName,
    TopicName,
)
from app.config.quantities import Duration, Size, duration_within
from app.dispatch.model.circuit_breaker import DEFAULT_LIMITS, BreakerLimits
from app.dispatch.model.dead_letter_budget import (
    DEAD_LETTER_BURST,
    DEAD_LETTER_SHARE,
    DEAD_LETTERS_PER_MINUTE,
)
from app.dispatch.model.head_of_line import BLOCKED_AFTER_S, FULL_SHARE, UNFINISHED_SHARE, HeadLimits
from app.dispatch.model.metadata_sources import MetadataName, MetadataValue, Source, check_size, read_source
from app.dispatch.model.outcome import ATTEMPTS_IN_MEMORY, DEFAULT_BACKOFF
from app.grpc_client.connection import KEEPALIVE_S, KEEPALIVE_TIMEOUT_S
from app.grpc_client.credentials import SYSTEM
from app.kernel.backoff import Backoff
from app.kernel.job import JobId, Kind

MAX_LAG_MESSAGES = 2**53  # what JSON counts exactly
TIMEOUT_S = 10.0
CONNECTIONS, CONNECTION_AGE_S = 4, 60.0
HEAD_OF_LINE_S = 300.0  # the default of `headOfLine.after`
HEAD_TIMEOUTS = 2  # the default is at least this many timeouts
MAX_LETTERS = 1_000_000  # in `burst`; `share: 1` sets no limit at all
DISPATCH_JOBS = f"{Kind.DISPATCH.value}:"  # begins the name of every job of a workload
MAX_FAILURES = 100_000  # beyond that a breaker would never open in practice
MAX_ATTEMPTS = 1000  # before a message leaves memory, or its tier
MAX_MERGES = 1000  # a higher number would be no limit in practice


class Metadata(Model):
    """A workload's identity (group and topic), its cluster and its owner."""

    group: Name
    topic: TopicName
    cluster: Name = Field(
        description="The cluster that has the topic. With a `spec.mode`, that of any region: each region "
        "reads its own cluster of the same tier, so that the same definition is deployed in all of them."
    )
    owner: str = Field("", max_length=200)


class Tls(Model):
    """TLS to the receiver's instances, also to those of zones and isolation groups. Their certificates are
    checked."""

    credentials: Name | None = Field(
        None,
        description="The entry of `receivers.credentials` in each worker's switchyard.yaml, with the "
        "authorities that the worker trusts and the certificate that it shows. Without it, the worker trusts "
        "the system's authorities and shows no certificate.",
    )
    server_name: ServerName | None = Field(
        None,
        description="The name that the certificates of all instances have. Without it, that is the first "
        "name in the address. If the address has only IP addresses, each certificate has its instance's. SRV "
        "records need it.",
    )

    @property
    def credentials_name(self) -> str:
        """As `app.grpc_client.credentials` has it."""
        return self.credentials or SYSTEM


class Keepalive(Model):
    """How soon a connection is given up whose receiver stops answering, as after a loss of power.

    Connections with calls send pings, and an open stream is a call. Many servers end connections with more
    than one ping in 5 minutes; the worker then doubles `time` for that server. With `transport: http2`, a
    connection without calls is closed after `time`.
    """

    time: Annotated[Duration, duration_within(10, DAY_S)] = Field(
        KEEPALIVE_S,
        description="After this long without any sign of the receiver, the connection sends a ping.",
    )
    timeout: Annotated[Duration, duration_within(1, 600)] = Field(
        KEEPALIVE_TIMEOUT_S,
        description="A receiver that does not answer the ping is gone. So is one whose system acknowledges "
        "nothing of what was sent, for this long.",
    )


class Target(Model):
    """The receiver. The contract `auto` is stream if the receiver implements it, else unary, until it does.

    With `stream`, messages wait for a receiver that refuses the stream; it is tried again every second.
    """

    address: Address = Field(
        description="host:port, a list of these, srv:///name for SRV records, or unix:/path; docs/push.md "
        "has all forms."
    )
    contract: Literal["unary", "stream", "auto"] = "unary"
    transport: Literal["http2", "grpc"] = added(
        "http2",
        description="What makes the calls: Switchyard's own HTTP/2 client, or the library grpcio, whose "
        "unary calls cost several times as much. An address that only grpcio can read, such as "
        "dns://server/host:port, always goes to it. grpcio reads no list of names and no SRV records.",
    )
    tls: Tls | None = added(None, description="Without it, connections are not encrypted.")
    method: Method | None = None
    compat: Literal["uforwarder"] | None = added(
        None,
        description="Calls also have what only uForwarder sends: `kafka-record-ts`, `kafka-tracing-info` "
        "with the place of a retried message, and an empty `kafka-key-bin` if there is no key.",
    )
    metadata: Annotated[dict[MetadataName, MetadataValue], AfterValidator(check_size)] = added(
        {},
        max_length=MAX_LISTED,
        description="By name, what calls carry: `header:x-zone` for the value of a record header, "
        "`Bearer secret:billing` for a text and a token of `receivers.tokens`, or a text. Health checks, and "
        "streams when they open, have texts and tokens only. A header that is no printable text is left out, "
        "unless the name ends in `-bin`. Texts and tokens may have 5 KB, headers of a message 1 KB.",
    )
    timeout: Annotated[Duration, duration_within(0.001, 3600)] = TIMEOUT_S
    zones: dict[Label, Address] = added(
        {},
        max_length=100,
        description="By zone, where the receiver's instances in that zone are. Workers of that zone "
        "(`worker.zone` in switchyard.yaml) prefer them to the other instances of `address`.",
    )
    connections: Annotated[int, Strict(), Field(ge=1, le=16)] = added(
        CONNECTIONS,
        description="An instance may be a load balancer. Each worker has so many connections for unary "
        "calls, and so many streams, divided among the instances and rounded up. Each stream has the "
        "receiver's whole window. `transport: grpc` has one stream to each instance.",
    )
    max_connection_age: Annotated[Duration, duration_within(1, DAY_S)] = added(
        CONNECTION_AGE_S,
        description="After about this time each connection that has carried messages is replaced, so that "
        "new instances behind a load balancer get their part. If a receiver has more addresses than "
        "`connections`, they count as instances, whose connections stay.",
    )
    keepalive: Keepalive = added(Keepalive())


class Flow(Model):
    """How much the receiver gets at once.

    The rates, and a number of messages in flight, apply to all workers of a region together. The region
    divides them by need (`app.kernel.limit_shares`). With `adaptive`, each worker finds its own limit.
    """

    max_inflight: Inflight = "adaptive"
    messages_per_second: Rate | None = None
    bytes_per_second: Annotated[Size, Ge(1)] | None = None

    @property
    def is_limited(self) -> bool:
        """There are limits to divide."""
        return self.max_inflight != "adaptive" or bool(self.messages_per_second or self.bytes_per_second)


class TrackerSpec(Model):
    """How many messages of a partition may lie between the committed and the newest fetched offset."""

    capacity: Annotated[int, Strict()] = Field(default=10_000, ge=1, le=1_000_000)


class HeadOfLine(Model):
    """When a message that blocks its partition is stashed, and where.

    A workload stashes at most `perMinute`; its workers share that as they share its jobs. Each worker may
    stash one at once, however small its share.

    The default of `after` is 5 minutes, or twice `target.timeout` if that is longer. An `after` below the
    timeout gives up handlers that may still answer. It also limits how much time the receiver may ask for.
    """

    after: Annotated[Duration, duration_within(0.001, 30 * DAY_S)] | None = None
    stash: Literal["dlq", "retry"] = "dlq"
    per_minute: Rate = added(10.0, alias="perMinute")
    patience: Annotated[Duration, duration_within(0.001, 30 * DAY_S)] = added(
        BLOCKED_AFTER_S,
        description="A message that leaves no room in the tracker is stashed after this time already. "
        "Choose a small multiple of the receiver's usual latency.",
    )
    full: Annotated[float, Strict()] = added(
        FULL_SHARE,
        ge=0.1,
        le=1,
        description="The tracker has no room if a larger share of it is in use. With 1 only `after` counts.",
    )
    unfinished: Annotated[float, Strict()] = added(
        UNFINISHED_SHARE,
        ge=0,
        le=1,
        description="It is one message's fault if a smaller share of what is in use is unfinished, or one "
        "message. Otherwise the receiver as a whole is slow, and only `after` counts.",
    )

    def after_s(self, timeout_s: float) -> float:
        """How long a message may block its partition. The default leaves time for two calls."""
        return max(HEAD_OF_LINE_S, HEAD_TIMEOUTS * timeout_s) if self.after is None else self.after


class RetryTier(Model):
    """A retry topic: how long a message waits in it, and how often it is delivered from it."""

    delay: Delay
    attempts: Annotated[int, Strict()] = Field(default=3, ge=1, le=MAX_ATTEMPTS)


class Redelivery(Model):
    """How often a failed message is delivered before it leaves memory for a retry topic or the DLQ.

    The names are those of gRPC's retry policy. Timeouts and overload send a message to its retry topic at
    once. Messages that no receiver took are held: none of this counts for them. A wait that has begun stays
    as it is when the definition changes.
    """

    max_attempts: Annotated[int, Strict()] = Field(
        ATTEMPTS_IN_MEMORY, alias="maxAttempts", ge=1, le=MAX_ATTEMPTS, description="Including the first."
    )
    initial_backoff: Annotated[Duration, duration_within(0.001, 600)] = Field(
        DEFAULT_BACKOFF.base_s, alias="initialBackoff", description="The wait before the second attempt."
    )
    max_backoff: Annotated[Duration, duration_within(0.001, 600)] = Field(
        DEFAULT_BACKOFF.cap_s, alias="maxBackoff", description="The longest wait between two attempts."
    )
    backoff_multiplier: Annotated[float, Strict()] = Field(
        DEFAULT_BACKOFF.factor, alias="backoffMultiplier", ge=1, le=100,
        description="The growth from one wait to the next.",
    )  # fmt: skip
    jitter: Annotated[float, Strict()] = Field(
        DEFAULT_BACKOFF.jitter, ge=0, le=1,
        description="The share of a wait that is random, so that messages that failed together are not "
        "delivered together.",
    )  # fmt: skip

    def backoff(self) -> Backoff:
        longest_s = max(self.initial_backoff, self.max_backoff)
        return Backoff(self.initial_backoff, longest_s, self.backoff_multiplier, self.jitter)

    def longest_s(self) -> float:
        """How long all attempts may take, without the time that they themselves need."""
        backoff = self.backoff()
        return sum(backoff.delay_s(failures) for failures in range(1, self.max_attempts))


class Breaker(Model):
    """When an instance of the receiver gets no more messages, and how soon it is tried again.

    Each worker has a breaker for each instance. While it is open, one message after each wait is a probe, and
    any that succeeds closes it. An instance that fails what others take gets less, whatever these limits
    allow: three timeouts in a row open its breaker, or it is ejected.
    """

    unavailable: Annotated[int, Strict()] = Field(
        DEFAULT_LIMITS.unavailable, ge=1, le=MAX_FAILURES,
        description="This many calls in a row that found no receiver (UNAVAILABLE) open it.",
    )  # fmt: skip
    failures: Annotated[int, Strict()] = Field(
        DEFAULT_LIMITS.failures, ge=1, le=MAX_FAILURES,
        description="This many failures of any kind in a row open it: no receiver, timeouts, overload, "
        "refused methods or credentials. Other errors count only while no dead letters are allowed.",
    )  # fmt: skip
    overload_share: Annotated[float, Strict()] = Field(
        DEFAULT_LIMITS.overload_share, alias="overloadShare", ge=0, le=1,
        description="It opens if timeouts and overload are a larger share of the calls of `window`. With 1 "
        "the share does not count.",
    )  # fmt: skip
    overload_calls: Annotated[int, Strict()] = Field(
        DEFAULT_LIMITS.overload_calls, alias="overloadCalls", ge=1, le=MAX_FAILURES,
        description="With fewer calls in the window the share does not count.",
    )  # fmt: skip
    window: Annotated[Duration, duration_within(1, 3600)] = Field(
        DEFAULT_LIMITS.window_s, description="How long a call counts: between half of this and all of it."
    )
    first_probe: Annotated[Duration, duration_within(0.01, 600)] = Field(
        DEFAULT_LIMITS.first_probe_s, alias="firstProbe", description="The wait before the first probe."
    )
    longest_probe: Annotated[Duration, duration_within(0.1, 600)] = Field(
        DEFAULT_LIMITS.longest_probe_s, alias="longestProbe",
        description="Each wait between two probes is twice the one before, up to this.",
    )  # fmt: skip

    def limits(self) -> BreakerLimits:
        return BreakerLimits(
            self.unavailable, self.failures, self.overload_share, self.overload_calls, self.window,
            self.first_probe, max(self.first_probe, self.longest_probe),
        )  # fmt: skip


class Dlq(Model):
    """The dead letter queue. A message that was merged from it `maxMerges` times is quarantined next time.

    A receiver that fails every message must not flush its topic into the queue. So failed messages may be at
    most `share` of those that finish (1: no limit). `perMinute` more may fail, shared among workers as jobs
    are. Each worker allows 10 at once, and acknowledgements save up `burst`. Beyond that, failed messages
    wait and are tried again, without counting attempts. Messages that the receiver or an operator stashes do
    not count.
    """

    enabled: bool = True
    max_merges: Annotated[int, Strict()] = added(3, alias="maxMerges", ge=0, le=MAX_MERGES)
    share: Annotated[float, Strict()] = added(DEAD_LETTER_SHARE, ge=0, le=1)
    per_minute: Rate = added(DEAD_LETTERS_PER_MINUTE, alias="perMinute")
    burst: Annotated[int, Strict()] = added(DEAD_LETTER_BURST, ge=1, le=MAX_LETTERS)


class IsolationTarget(Model):
    """A receiver for messages of an environment, of a zone, or of a zone of an environment.

    Without an environment it belongs to production: no other environment's messages ever reach it. `fallback`
    names another zone of the same environment. Its target gets the messages once this one has been away for
    `fallbackAfter`, until it is back. Without a fallback they wait.
    """

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": ["environment"]}, {"required": ["zone"]}]}
    )

    environment: Label | None = None
    zone: Label | None = None
    address: Address
    fallback: Label | None = added(None)


class Isolation(Model):
    """The headers that route messages to separate receivers, and those receivers beside the main target.

    An unknown zone falls back to the target without one. An unknown environment is treated as `unmatched`
    says, and reaches the main target only with `default`. The values in `production`, and a missing header,
    mean the main target. Messages for a production target wait until that target is there.
    """

    zone: Header | None = None
    environment: Header | None = None
    targets: tuple[IsolationTarget, ...] = added((), max_length=MAX_LISTED)
    fallback_after: Annotated[Duration, duration_within(0, DAY_S)] = added(60.0, alias="fallbackAfter")
    unmatched: Literal["dlq", "skip", "default"] = added("dlq")
    production: tuple[Label, ...] = added(("production", "prod"), max_length=MAX_LISTED)


class Protobuf(Model):
    """The payload's type: a message of a descriptor file, or of a folder that serves as a registry.

    `descriptor` is relative to the folder `schemas` of each worker's switchyard.yaml, and must lie below it.
    A `.proto` source looks for its imports in that folder first, then in its own, then in the one above.

    `framing`: `confluent` means that a magic byte, the schema's id and the message's indexes precede the
    message.

    `deliver`: `bytes` is the Protobuf message without its frame, for generated code; the frame's schema id
    goes into the metadata `switchyard-schema-id`. `record` is the record's value unchanged, with its frame.
    `json` is the message as JSON.
    """

    descriptor: str = Field(min_length=1, max_length=4096)
    message: MessageName
    framing: Literal["raw", "confluent"] = added("raw")
    deliver: Literal["bytes", "record", "json"] = added("bytes")
    invalid: Literal["dlq", "deliver"] = added("deliver")


class Payload(Model):
    """The type of the payload."""

    protobuf: Protobuf | None = None


class CatchUp(Model):
    """From which lag (in messages) a backlog is split off, and its rate of delivery beside new messages."""

    lag: Annotated[int, Strict()] = Field(ge=1, le=MAX_LAG_MESSAGES)
    rate: Rate


class Headers(Model):
    """Which record headers the receiver gets, over either contract.

    It gets those that `allow` names (by default all), except those that `deny` names. An entry is a name, or
    the beginning of names and a `*`; case does not count. The receiver gets no `traceparent` that these leave
    out. Interceptors see all headers, and copies in retry topics and the DLQ keep them.
    """

    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["allow"]}, {"required": ["deny"]}]})

    allow: tuple[HeaderPattern, ...] | None = Field(None, max_length=MAX_LISTED)
    deny: tuple[HeaderPattern, ...] = added((), max_length=MAX_LISTED)


class Placement(Model):
    """Runs the jobs only on workers of this isolation group (`worker.group` in switchyard.yaml)."""

    group: Name


class Hibernate(Model):
    """A workload that was idle for `after` has no jobs until messages wait for it again."""

    after: Annotated[Duration, duration_within(60, 30 * DAY_S)]


class Spec(Model):
    """How the messages are delivered.

    `mode`: how a workload of several regions runs. With `active-active` it runs in all of them, and each
    message tells the receiver which region is primary. With `active-passive` it runs only in the active
    region. `primary` is the region in which it begins. The default is the first region of the Failover
    definition that shares the topic. A later edit of `primary` moves nothing; a failover does.
    """

    mode: Literal["active-active", "active-passive"] | None = None
    primary: Name | None = None
    target: Target
    ordering: Literal["none", "key", "partition"] = "none"
    flow: Flow = Flow()
    tracker: TrackerSpec = TrackerSpec()
    head_of_line: HeadOfLine | None = Field(None, alias="headOfLine")
    redelivery: Redelivery = added(Redelivery())
    breaker: Breaker = added(Breaker())
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
    """A group's consumption of a topic, delivered to its receiver."""

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
        return f"{self.metadata.topic}__{self.metadata.group}__dlq"

    def delayed_topic(self) -> str:
        """The topic of messages that are due far in the future, one partition per level
        (`app.dispatch.model.delayed_delivery`).
        """
        return f"{self.metadata.topic}__{self.metadata.group}__delayed"

    def merge_topic(self) -> str:
        """The topic of letters merged from the DLQ, which is read like a retry tier without a delay."""
        return f"{self.metadata.topic}__{self.metadata.group}__merge"

    def own_topics(self) -> tuple[str, ...]:
        """All topics that the workload may have besides its main topic."""
        return (*self.retry_topics(), self.dlq_topic(), self.merge_topic(), self.delayed_topic())

    def head_of_line(self) -> HeadOfLine:
        return self.spec.head_of_line or HeadOfLine()

    def head_limits(self) -> HeadLimits:
        """From when on a message blocks its partition."""
        head = self.head_of_line()
        after_s = head.after_s(self.spec.target.timeout)
        return HeadLimits(after_s, head.patience, head.full, head.unfinished)

    def metadata_sources(self) -> dict[str, Source]:
        """The metadata that calls carry besides Switchyard's own, by name."""
        return {name: read_source(value) for name, value in self.spec.target.metadata.items()}

    def credentials(self) -> str | None:
        """The name of the credentials that connections need (`app.grpc_client.credentials`); None: no TLS."""
        tls = self.spec.target.tls
        return None if tls is None else tls.credentials_name

    def tokens(self) -> set[str]:
        """The names of the tokens that calls need (`app.grpc_client.tokens`)."""
        return {source.secret for source in self.metadata_sources().values() if source.secret}

    def method(self) -> str:
        """The gRPC method: the definition's, or that of uForwarder's consumers."""
        own = self.spec.target.method
        return own or f"/kafka.consumerproxy.{self.metadata.group}/{self.metadata.topic}"


def dispatch_job(key: str, topic: str, partition: int) -> JobId:
    """The job of a workload's partition. Raises ValueError: no job can have that name."""
    return JobId(Kind.DISPATCH, key, topic, partition)
