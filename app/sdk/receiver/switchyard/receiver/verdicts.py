"""What handlers take and return."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

MAX_REASON_CHARS = 500


@dataclass(frozen=True, slots=True)
class Ack:
    """The message is done."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Not now: to the retry topic, for the tier's delay or, if longer, `after` (seconds, at most an hour)."""

    after: float | None = None


@dataclass(frozen=True, slots=True)
class Stash:
    """Never: to the dead letter queue, with the reason."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Skip:
    """Not for us: acknowledged as it is."""


Verdict = Ack | Retry | Stash | Skip | None


@dataclass(frozen=True, slots=True)
class RegionRole:
    """What the region that sends is for a workload of several: whether it is the primary (active) one, and
    the epoch under which it is, or another one is. An epoch is one region's alone, so a handler that takes
    nothing from a lower epoch than it has seen is never led by two regions at once.
    """

    region: str
    primary: bool
    epoch: int


@dataclass(slots=True)
class Message:
    """A delivered message. `headers` are the record's own, in order, names in lower case.

    A tombstone, a record without a value, has an empty `value` and is told by `tombstone`: handlers that do
    not know of tombstones get bytes all the same. `role` is there for workloads of several regions.
    """

    topic: str
    group: str
    value: bytes
    partition: int = 0
    offset: int = 0
    key: bytes | None = None
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    timestamp_ms: int = -1
    retry_count: int = 0
    attempt: int = 1
    traceparent: str = ""
    tombstone: bool = False
    role: RegionRole | None = None


Handler = Callable[[Message], Verdict | Awaitable[Verdict]]
Verdicts = Verdict | Sequence[Verdict]
BatchHandler = Callable[[list[Message]], Verdicts | Awaitable[Verdicts]]


class NoVerdict(TypeError):
    """A handler returned something else than it should."""


class Failed:
    """A message's failure where its neighbours have verdicts; only interceptors make them."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def checked(verdict: object) -> Verdict | Failed:
    """The verdict.

    Raises:
        NoVerdict: it is none.
    """
    if verdict is None or isinstance(verdict, Ack | Retry | Stash | Skip | Failed):
        return verdict
    raise NoVerdict(f"the handler returned {type(verdict).__name__}, which is no verdict")


def spread(verdicts: object, count: int) -> list[Verdict | Failed]:
    """One verdict a message: what a batch handler returned for `count` of them.

    Raises:
        NoVerdict: they are fewer or more, or none at all.
    """
    if not isinstance(verdicts, list | tuple):
        return [checked(verdicts)] * count
    if len(verdicts) != count:
        raise NoVerdict(f"the handler returned {len(verdicts)} verdicts for {count} messages")
    return [checked(verdict) for verdict in verdicts]


def failure_text(error: BaseException) -> str:
    """The error, for people."""
    return plain_text(str(error) if isinstance(error, NoVerdict) else f"{type(error).__name__}: {error}")


def plain_text(text: str) -> str:
    """What gRPC and protobuf take: they refuse lone surrogates, and a call would never be answered."""
    return text[:MAX_REASON_CHARS].encode(errors="replace").decode()
