"""The arguments and results of handlers."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from switchyard.receiver.delivery_time import DeliveryTime

MAX_REASON_CHARS = 500


@dataclass(frozen=True, slots=True)
class Ack:
    """The message is finished."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Deliver it later: to the retry topic, for the tier's delay or, if longer, `after` (seconds, at most an
    hour)."""

    after: float | None = None


@dataclass(frozen=True, slots=True)
class Renew:
    """Deliver it once more, with a timeout of `seconds` if that is longer than the usual one. This does not
    count as an attempt, and comes to the same receiver if it can.

    It comes at once, or after `after` seconds: so a receiver that works on it elsewhere may ask from time to
    time. Without `after` the waits grow. When the workload's `headOfLine.after` has passed since the first
    delivery, this is a `Retry`.
    """

    seconds: float
    after: float | None = None


@dataclass(frozen=True, slots=True)
class Stash:
    """Never deliver it again: to the dead letter queue, with the reason."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Skip:
    """Acknowledge it without handling it."""


Verdict = Ack | Retry | Renew | Stash | Skip | None


@dataclass(frozen=True, slots=True)
class RegionRole:
    """The role of the sending region, for a workload that several regions share.

    `primary` says whether the region is the primary (active) one, and `epoch` under which epoch it or another
    region is. An epoch belongs to one region. So a handler that refuses epochs below the highest it has seen
    never obeys two regions at once.
    """

    region: str
    primary: bool
    epoch: int


@dataclass(slots=True)
class Message:
    """A delivered message. `headers` are the record's own, in order, with names in lower case. After them
    come those that say how its value was changed (`switchyard-payload-format`, for example).

    A tombstone, a record without a value, has `tombstone` and an empty `value`. So handlers that do not know
    tombstones still get bytes. `role` is set for workloads that several regions share.
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
    _time: DeliveryTime | None = field(default=None, repr=False, compare=False)
    _number: int = field(default=0, repr=False, compare=False)

    def time_left(self) -> float:
        """Seconds until the delivery times out, and is made again; infinite if there is no limit."""
        return math.inf if self._time is None else self._time.left_s(self._number)

    def renew(self, seconds: float) -> bool:
        """Asks for this much time from now on, while an asynchronous handler works on the message; from any
        thread. It never shortens what is left. The workload's `headOfLine.after` limits the whole, so it may
        get less: `time_left` says how much.

        Returns False if it gets no more: for unary calls, where a handler returns `Renew` instead, and when
        the limit is reached or the delivery has ended. Messages of a batch are renewed one by one.
        """
        return self._time is not None and self._time.renew(self._number, seconds)


Handler = Callable[[Message], Verdict | Awaitable[Verdict]]
Verdicts = Verdict | Sequence[Verdict]
BatchHandler = Callable[[list[Message]], Verdicts | Awaitable[Verdicts]]


class NoVerdict(TypeError):
    """A handler returned something other than a verdict."""


class Failed:
    """The failure of one message in a batch, beside the verdicts of the others. Only interceptors make it."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def checked(verdict: object) -> Verdict | Failed:
    """The verdict.

    Raises:
        NoVerdict: It is no verdict.
    """
    if verdict is None or isinstance(verdict, Ack | Retry | Renew | Stash | Skip | Failed):
        return verdict
    raise NoVerdict(f"the handler returned {type(verdict).__name__}, which is no verdict")


def spread(verdicts: object, count: int) -> list[Verdict | Failed]:
    """One verdict for each of `count` messages, from what a batch handler returned.

    Raises:
        NoVerdict: The handler returned another number of verdicts, or something other than verdicts.
    """
    if not isinstance(verdicts, list | tuple):
        return [checked(verdicts)] * count
    if len(verdicts) != count:
        raise NoVerdict(f"the handler returned {len(verdicts)} verdicts for {count} messages")
    return [checked(verdict) for verdict in verdicts]


def failure_text(error: BaseException) -> str:
    """The error as text for people."""
    return plain_text(str(error) if isinstance(error, NoVerdict) else f"{type(error).__name__}: {error}")


def plain_text(text: str) -> str:
    """The text without lone surrogates, which gRPC and protobuf refuse: the call would get no answer."""
    return text[:MAX_REASON_CHARS].encode(errors="replace").decode()
