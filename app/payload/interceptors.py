"""Interceptors on the sending side: the operator's code, which sees every message before it is sent.

    class Redact:
        def before(self, message: Message) -> Verdict:
            return Send(value=redact(message.value))

The static configuration names interceptors, as `package.module:object` or as an entry point of the group
`switchyard.interceptors`. The object is an instance, or a class that takes no arguments. They run in the
configured order, each on the value that the previous one left. The first Reject or Skip ends the chain.

Rules
1. An interceptor may change the value and add metadata. It cannot change the message's identity (topic,
   partition, offset, key, headers). Retry topics and the DLQ get the record as it was read.
2. `before` runs in the event loop, before every attempt, so it must not wait. A call is slow if it takes
   longer than `SLOW_INTERCEPTOR_S`. A busy machine delays a few calls, so the log warns only if more than
   `SLOW_SHARE` are slow, or if one takes longer than `INTERCEPTOR_STALL_S`. It warns at most once in
   `LOG_INTERVAL_S`.
3. An exception or an invalid verdict rejects this message, and no other. The reason holds the interceptor's
   name and the exception's type, but not the exception's text, which may hold the value.
4. `app.payload.interceptor_loader` refuses wrong names and objects at start, all at once.
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

SLOW_INTERCEPTOR_S = 0.005  # at 200 messages a second, such calls take a whole core
SLOW_SHARE = 0.01
INTERCEPTOR_STALL_S = 1.0
LOG_INTERVAL_S = 60.0
MAX_REASON_CHARS = 500


class Message(NamedTuple):
    """A message about to be sent. A retried message has the identity of its first record.

    Attributes:
        value: None for a tombstone.
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
    """The verdict to send the message with this value (`KEEP`: its own) and these additional metadata."""

    value: bytes | _Keep | None = KEEP
    metadata: Metadata = ()


@dataclass(frozen=True, slots=True)
class Reject:
    """The verdict that the message can never be delivered. It goes to the DLQ, with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Skip:
    """The verdict that the message need not be delivered. It counts as acknowledged."""

    reason: str


Verdict = Send | Reject | Skip
SEND: Final = Send()


class Outgoing(NamedTuple):
    """A message that a chain lets through: the value to send, and the metadata that interceptors add."""

    value: bytes | None
    metadata: Metadata


class Interceptor(Protocol):
    """An interceptor, see the module."""

    def before(self, message: Message) -> Verdict:
        """The verdict on the message. Runs in the event loop, so it must not wait."""
        ...


class _Link:
    __slots__ = ("before", "logged_s", "name", "seen_messages", "slow_messages")

    def __init__(self, name: str, interceptor: Interceptor) -> None:
        self.name = name
        self.before = interceptor.before
        self.seen_messages = self.slow_messages = 0
        self.logged_s = float("-inf")


class InterceptorChain:
    """Interceptors in order. Without any, `workload_chain` makes no chain, so that messages cost nothing."""

    __slots__ = ("_clock", "_links")

    def __init__(
        self, named: Sequence[tuple[str, Interceptor]], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._links = [_Link(name, interceptor) for name, interceptor in named]
        self._clock = clock

    def before(self, message: Message) -> Outgoing | Reject | Skip:
        """The value and metadata to send, or the verdict that nothing is sent."""
        clock = self._clock
        metadata: Metadata = ()
        for link in self._links:
            link.seen_messages += 1
            started_s = clock()
            try:
                verdict: object = link.before(message)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - not even `sys.exit()` may stop a worker (rule 3)
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
    """The verdict that ends the chain. An invalid one becomes a Reject."""
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
