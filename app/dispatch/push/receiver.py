"""One receiver of a workload as this worker sees it: how many messages it may get now, and how it answers.

A workload has one receiver, or with isolation one for each target. Trouble of one does not affect the others.
The messages that wait for it are in `app.dispatch.scheduler.receiver_queues`.

Rules (tests/dispatch/push/test_receiver.py)
1. At most `limit` messages are in flight: this worker's share of a fixed number, or the adaptive limit.
2. While the breaker is not closed only probes go out. After it closes, the limit grows to its full size
   within `SLOW_START_S`, so that a receiver that has just come back is not overloaded again.
3. A receiver whose health check says that it is not serving gets nothing, not even probes
   (`app.dispatch.push.health_watch`).
4. With the contract `auto`, a receiver without the stream gets unary calls, and the stream is tried again
   from time to time. With `stream` its messages wait until there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from app.dispatch.model.adaptive_timeout import MAXIMUM_S, AdaptiveTimeout
from app.dispatch.model.circuit_breaker import FAILURES, CircuitBreaker
from app.dispatch.model.concurrency_limit import AdaptiveLimit
from app.dispatch.model.head_of_line import CREDIT_MAX
from app.dispatch.model.outcome import KafkaAction
from app.dispatch.model.throughput_diagnosis import TargetStatus
from app.dispatch.push.health_watch import HealthWatch
from app.kernel.grpc_status import (
    ALREADY_EXISTS,
    CANCELLED,
    DEADLINE_EXCEEDED,
    NOT_FOUND,
    OK,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    UNIMPLEMENTED,
)
from app.kernel.limit_shares import ALL
from app.kernel.rates import MeanLatency
from app.kernel.repeated_trouble import RepeatedTrouble

if TYPE_CHECKING:
    from app.dispatch.definition import Workload
    from app.dispatch.push.call_result import CallResult
    from app.dispatch.push.metadata import SenderRole
    from app.dispatch.push.stream.client import StreamTarget
    from app.dispatch.push.transport import UnaryTarget

SLOW_START_S = 1.0
SLOW_START_LEAST = 4
MAX_ADAPTIVE = 10_000
DROPPED = {DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE}  # the receiver may have too many calls
UNREACHED = {CANCELLED, UNAVAILABLE}
TAKEN = {OK, ALREADY_EXISTS}
REFUSALS = {NOT_FOUND: UNIMPLEMENTED}  # of a whole stream; any other end of one counts as UNAVAILABLE


def was_taken(result: CallResult) -> bool:
    """Whether the receiver took the message, or decided itself to skip or stash it."""
    action = None if result.action is None else KafkaAction.read(result.action)
    return result.code in TAKEN if action is None else action is not KafkaAction.RETRY


class ReceiverClients(Protocol):
    """Makes the clients of a receiver: `app.dispatch.scheduler.clients`."""

    def unary(self, workload: Workload, address: str) -> UnaryTarget: ...

    def stream(
        self, workload: Workload, address: str, on_room: Callable[[], None],
        on_lost: Callable[[CallResult], None],
    ) -> StreamTarget: ...  # fmt: skip


class Receiver:
    """The state of one receiver; see the module's rules.

    Args:
        on_room: Is called when there may be room again.

    Attributes:
        in_flight: Messages on their way to it; `out`: how many of them each pump has sent.
        taken: Messages that it took, with any answer.
        credit: Spent by giving up a suspect, earned by messages that it takes.
        share: The part of the limits that this worker may use.
        unread: Answers that are too large to read.
    """

    def __init__(
        self, workload: Workload, address: str, clients: ReceiverClients, clock: Callable[[], float],
        on_room: Callable[[], None],
    ) -> None:  # fmt: skip
        self.address = address
        self.breaker = CircuitBreaker()
        self.in_flight = 0
        self.out: Counter[object] = Counter()
        self.unread = RepeatedTrouble()
        self.taken = 0
        self.credit = 1
        self.share = ALL
        self.adaptive: AdaptiveLimit | None = None
        self.latency = MeanLatency()
        self.target = clients.unary(workload, address)
        self.health = HealthWatch(address, on_room)
        self._clock = clock
        self._on_room = on_room
        self._stream: StreamTarget | None = None
        self._never_unary = workload.spec.target.contract == "stream"
        if workload.spec.target.contract != "unary":
            self._stream = clients.stream(workload, address, on_room, self._on_stream_end)
        self.change(workload)

    def change(self, workload: Workload) -> None:
        wanted = workload.spec.flow.max_inflight
        self.fixed = wanted if isinstance(wanted, int) else None
        if self.fixed is not None:
            self.adaptive = None
        elif self.adaptive is None:
            self.adaptive = AdaptiveLimit(maximum=MAX_ADAPTIVE)
        base_s = workload.spec.target.timeout
        self.timeout = AdaptiveTimeout(base_s, max(base_s, MAXIMUM_S))

    @property
    def is_away(self) -> bool:
        """Whether the receiver takes no messages. One that answers and fails them is not away."""
        return not self.health.serving or not (self.breaker.closed or self.breaker.failed)

    def announce_role(self, role: SenderRole | None) -> None:
        """Sends this region's role over the stream, now and after each connect."""
        if self._stream is not None:
            self._stream.announce_role(role)

    @property
    def limit(self) -> int:
        """The most messages in flight from this worker."""
        if self.adaptive is not None:
            return self.adaptive.limit
        return self.share.in_flight(self.fixed or 1)

    def allowed(self, now_s: float) -> int:
        """The limit, or what slow start allows of it (rule 2)."""
        limit, closed_s = self.limit, now_s - self.breaker.closed_at_s
        if closed_s < SLOW_START_S:
            return min(limit, max(SLOW_START_LEAST, int(limit * closed_s / SLOW_START_S)))
        return limit

    @property
    def timeout_s(self) -> float:
        return self.timeout.timeout_s

    @property
    def stream(self) -> StreamTarget | None:
        """The stream, if messages go over it (rule 4)."""
        stream = self._stream
        return stream if stream is not None and self._uses_stream(stream) else None

    def _uses_stream(self, stream: StreamTarget) -> bool:
        """Whether messages depend on the stream; otherwise they go by unary calls (rule 4)."""
        return self._never_unary or stream.supported is not False

    def room(self, now_s: float) -> int:
        """How many messages may go now; at most a probe while the breaker is not closed: send or `forgo`
        it."""
        if not self.health.serving:
            return 0
        breaker = self.breaker
        room = self.allowed(now_s) - self.in_flight
        if room <= 0 or not (breaker.closed or breaker.allow(now_s)):
            return 0
        stream = self.stream
        if stream is not None:
            stream.timeout_s = self.timeout_s
            room = min(room, stream.room)
            if room <= 0:
                stream.connect()  # no effect if it is connected and only has no credit
                return 0
        return room if breaker.closed else 1

    def status(self, now_s: float, held: int) -> TargetStatus:
        """Its state for heartbeats; `held` messages wait for it."""
        breaker, adaptive, stream = self.breaker, self.adaptive, self.stream
        limit, allowed = self.limit, self.allowed(now_s)
        calls, failed = breaker.recent(now_s)
        latency_s = self.latency.mean_s(now_s)
        probe_in_s = -0.001 if breaker.closed else max(0.0, breaker.next_probe_at_s - now_s)
        return TargetStatus(
            address=self.address,
            contract="unary" if stream is None else "stream",
            breaker=str(breaker.state),
            why_open="" if breaker.closed else breaker.reason,
            probe_in_ms=round(probe_in_s * 1000),
            limit=limit,
            allowed=-1 if allowed == limit else allowed,
            ceiling=0 if adaptive is None else adaptive.maximum,
            phase="" if adaptive is None else str(adaptive.phase),
            in_flight=self.in_flight,
            credit=-1 if stream is None else stream.room,
            held=held,
            timeout_ms=round(self.timeout_s * 1000),
            base_timeout_ms=0 if self.timeout_s == self.timeout.base_s else round(self.timeout.base_s * 1000),
            health="" if self.health.heard is None else str(self.health.heard),
            calls=calls,
            failed=failed,
            latency_ms=-1 if latency_s is None else round(latency_s * 1000, 2),
        )

    def wait_s(self, now_s: float) -> float:
        """Seconds until there may be room without an answer; 0: only answers make room."""
        if not self.breaker.closed:
            return max(self.breaker.next_probe_at_s - now_s, 0.01)
        return 0.01 if now_s - self.breaker.closed_at_s < SLOW_START_S else 0.0

    def sent(self, pump: object, count: int) -> None:
        """`count` messages of the pump are in flight from now on."""
        self.in_flight += count
        self.out[pump] += count

    def answered(
        self, pump: object, result: CallResult, count: int, started_s: float, now_s: float, spent: bool
    ) -> None:
        """Takes the common answer to `count` messages of the pump; `spent`: no dead letter is allowed now."""
        before = self.in_flight
        self.in_flight -= count
        self.out[pump] -= count
        if not self.out[pump]:
            del self.out[pump]
        if result.local_error is not None or result.too_large or result.is_planned_end:
            # This says something about the message at most, and nothing about the receiver.
            self.breaker.forgo(now_s)
            return
        code = result.code
        if result.answer_too_large and code not in UNREACHED:  # a stream's is counted by `_on_stream_end`
            self.unread.record(result.details)
        if code not in FAILURES and code != CANCELLED:
            self.taken += count
            self.credit = min(CREDIT_MAX, self.credit + count)
        was_closed = self.breaker.closed
        failed = not was_taken(result)
        self.breaker.on_result(code, now_s, started_s, failed=failed, spent=spent and failed, count=count)
        latency_s = now_s - started_s
        if self.breaker.closed and not was_closed:
            self.timeout.reset(now_s)
            if self.adaptive is not None:
                self.adaptive.reset(now_s)
        if self.adaptive is not None:
            dropped = count if code in DROPPED else 0
            self.adaptive.on_samples(now_s, count - dropped, latency_s, before, dropped)
        if code == DEADLINE_EXCEEDED:
            self.timeout.on_timeout(now_s, latency_s, count)
        elif code not in UNREACHED:
            self.timeout.on_answers(now_s, count, latency_s)
        if code not in UNREACHED:
            self.latency.add(latency_s, count)

    def _on_stream_end(self, result: CallResult) -> None:
        """The stream ended, or could not be opened."""
        now_s = self._clock()
        stream = self._stream
        if result.answer_too_large:
            self.unread.record(result.details)
        if stream is not None and self._uses_stream(stream) and not result.is_planned_end:
            lost = result.code in FAILURES or result.code == CANCELLED
            code = result.code if lost else REFUSALS.get(result.code, UNAVAILABLE)
            self.breaker.on_result(code, now_s, now_s)
        self._on_room()

    async def close(self) -> None:
        """Closes the connections; calls in flight end as CANCELLED."""
        await self.health.close()
        if self._stream is not None:
            await self._stream.close()
        await self.target.close()
