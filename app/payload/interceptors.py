"""Interceptors on the sending side: code of the operator's that sees every message before it is sent.

    class Redact:
        def before(self, message: Message) -> Verdict:
            return Send(value=redact(message.value))

Named in the static configuration, as `package.module:object` or as an entry point of the group
`switchyard.interceptors`; the object is an instance, or a class without arguments. In order: each sees the
value that the one before it left, and the first Reject or Skip ends the row.

Rules
1. An interceptor changes the value and adds metadata. The message's identity (topic, partition, offset,
   key, headers) is not its to change, and what goes to a retry topic or DLQ is the record as it was read.
2. It is asked before every attempt, in the event loop: it must not wait. What takes longer than
   `SLOW_INTERCEPTOR_S` is counted. It is told in the log, once in `LOG_INTERVAL_S`, when it is more than
   `SLOW_SHARE` of the messages (a busy machine delays the best now and then) or takes longer than
   `INTERCEPTOR_STALL_S`.
3. Whatever it raises or returns wrongly rejects this message, and no other. The reason holds its name and
   the exception's type; the exception's words may hold the value, and are not told.
4. Wrong names, and objects that are no interceptors, are an `InterceptorError` at start, all at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import structlog

from app.payload.grpc_metadata import Metadata, check_metadata
from app.payload.preview import safe_text

log = structlog.get_logger(__name__)

SLOW_INTERCEPTOR_S = 0.005  # at a thousand messages a second a core does nothing else
SLOW_SHARE = 0.01
INTERCEPTOR_STALL_S = 1.0
LOG_INTERVAL_S = 60.0
MAX_REASON_CHARS = 500


class Message(NamedTuple):
    """A message about to be sent. For a retry, its identity is where it first stood.

    Attributes:
        value: None for a tombstone.
        headers: as they were read.
        timestamp_ms: of the record.
        attempt: 1 for the first delivery.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = -1
    attempt: int = 1


class _Keep:
    """The type of `KEEP`."""

    def __repr__(self) -> str:
        return "KEEP"


KEEP: Final = _Keep()


@dataclass(frozen=True, slots=True)
class Send:
    """Send it on.

    Attributes:
        value: in its place; `KEEP`: as it was.
        metadata: added to the call's; text for names, bytes for names that end in `-bin`.
    """

    value: bytes | _Keep | None = KEEP
    metadata: Metadata = ()


@dataclass(frozen=True, slots=True)
class Reject:
    """It can never be delivered: to the DLQ, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Skip:
    """It need not be delivered: finished as if the receiver had acknowledged it."""

    reason: str


Verdict = Send | Reject | Skip
SEND: Final = Send()


class Outgoing(NamedTuple):
    """What a chain lets through: the value to send, and what its interceptors add to the metadata."""

    value: bytes | None
    metadata: Metadata


class Interceptor(Protocol):
    """See the module."""

    def before(self, message: Message) -> Verdict:
        """What is to happen with the message. Called in the event loop: it must not wait."""
        ...


class _Link:
    """An interceptor in a chain, with the messages that it has seen, and those that it took long for."""

    __slots__ = ("before", "logged_s", "name", "seen_messages", "slow_messages")

    def __init__(self, name: str, interceptor: Interceptor) -> None:
        self.name = name
        self.before = interceptor.before
        self.seen_messages = self.slow_messages = 0
        self.logged_s = float("-inf")


class InterceptorChain:
    """Interceptors in a row. Where there are none there is no chain
    (`app.payload.protobuf_interceptor.workload_chain`), so that messages without interceptors pay nothing."""

    __slots__ = ("_clock", "_links")

    def __init__(
        self, named: Sequence[tuple[str, Interceptor]], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._links = [_Link(name, interceptor) for name, interceptor in named]
        self._clock = clock

    def before(self, message: Message) -> Outgoing | Reject | Skip:
        """What is to be sent, or why nothing is."""
        clock = self._clock
        metadata: Metadata = ()
        for link in self._links:
            link.seen_messages += 1
            started_s = clock()
            try:
                verdict: object = link.before(message)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - `sys.exit()` is no reason to stop a worker (rule 3)
                return Reject(f"interceptor {link.name} raised {type(error).__name__}")
            finally:
                took_s = clock() - started_s
                if took_s > SLOW_INTERCEPTOR_S:
                    self._slow(link, took_s, started_s)
            if not isinstance(verdict, Send):
                return _ended(link.name, verdict)
            problem = None
            if isinstance(verdict.value, bytes) or verdict.value is None:
                message = message._replace(value=verdict.value)
            elif verdict.value is not KEEP:
                problem = f"sent a value of type {type(verdict.value).__name__}, not bytes"
            if verdict.metadata or not isinstance(verdict.metadata, tuple):
                problem = problem or check_metadata(verdict.metadata, metadata)
                metadata = (*metadata, *verdict.metadata) if problem is None else ()
            if problem is not None:
                return Reject(f"interceptor {link.name} {problem}")
        return Outgoing(message.value, metadata)

    def _slow(self, link: _Link, took_s: float, now_s: float) -> None:
        link.slow_messages += 1
        is_often = link.slow_messages > link.seen_messages * SLOW_SHARE
        if (is_often or took_s > INTERCEPTOR_STALL_S) and now_s >= link.logged_s + LOG_INTERVAL_S:
            link.logged_s = now_s
            log.warning(
                "an interceptor holds up the worker; it must not wait",
                interceptor=link.name,
                took_s=round(took_s, 3),
                slow=link.slow_messages,
                seen=link.seen_messages,
            )


def _ended(name: str, verdict: object) -> Reject | Skip:
    """The verdict that ends the row; what is none is a Reject."""
    if isinstance(verdict, Reject | Skip):
        return type(verdict)(f"interceptor {name}: {_reason_words(verdict.reason)}")
    close = getattr(verdict, "close", None)
    if close is not None and type(verdict).__name__ == "coroutine":
        close()
    return Reject(f"interceptor {name} returned {type(verdict).__name__}, not Send, Reject or Skip")


def _reason_words(reason: object) -> str:
    if not isinstance(reason, str) or not reason:
        return "no reason given"
    return safe_text(reason, MAX_REASON_CHARS)[0]
