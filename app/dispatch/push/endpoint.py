"""One instance of a receiver as this worker sees it: how many messages it may get now, and how it answers.

The words are gRPC's and Envoy's: a target's name is resolved to endpoints, and `app.dispatch.push.receiver`
balances messages between them. Trouble of one endpoint does not affect the others.

Rules (tests/dispatch/push/test_receiver.py)
1. At most `limit` messages are in flight: this worker's share of a fixed number, or the adaptive limit.
2. While the breaker is not closed only probes go out. After it closes, the limit grows to its full size
   within `SLOW_START_S`, so that an endpoint that has just come back is not overloaded again.
3. An endpoint whose health check says that it is not serving gets nothing, not even probes
   (`app.dispatch.push.health_watch`).
4. With the contract `auto`, an endpoint without the stream gets unary calls, and the stream is tried again
   from time to time. With `stream` messages wait until there is one.
5. An endpoint that its name has no longer gets no new messages. It is closed when those in flight have ended.
6. `standing` has how it does beside the others. An outlier gets less; the probes of an open breaker wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from app.dispatch.model.adaptive_timeout import MAXIMUM_S, AdaptiveTimeout
from app.dispatch.model.circuit_breaker import FAILURES, CircuitBreaker
from app.dispatch.model.concurrency_limit import AdaptiveLimit
from app.dispatch.model.outlier_detection import Standing
from app.dispatch.model.throughput_diagnosis import EndpointStatus
from app.dispatch.push.health_watch import HealthWatch
from app.grpc_client.address import plain_text
from app.kernel.grpc_status import (
    CANCELLED,
    DEADLINE_EXCEEDED,
    NOT_FOUND,
    OK,
    RESOURCE_EXHAUSTED,
    UNAVAILABLE,
    UNIMPLEMENTED,
)
from app.kernel.rates import MeanLatency

if TYPE_CHECKING:
    from app.dispatch.definition import Workload
    from app.dispatch.push.call_result import CallResult
    from app.dispatch.push.health import HealthClient
    from app.dispatch.push.metadata import SenderRole
    from app.dispatch.push.stream.client import StreamTarget
    from app.dispatch.push.transport import UnaryTarget

SLOW_START_S = 1.0
SLOW_START_LEAST = 4
MAX_ADAPTIVE = 10_000
DROPPED = {DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE}  # it may have too many calls
UNREACHED = {CANCELLED, UNAVAILABLE}
REFUSALS = {NOT_FOUND: UNIMPLEMENTED}  # of a whole stream; any other end of one counts as UNAVAILABLE


class Place(NamedTuple):
    """Where an endpoint is.

    Attributes:
        target: The address in the workload's definition by which it was found.
        name: The endpoint's own, as "10.0.0.7:8443".
        total: How many endpoints the target has. Few of them may be addresses of load balancers.
        is_local: It is in this worker's zone.
    """

    target: str
    name: str
    total: int
    is_local: bool = False


class EndpointClients(Protocol):
    """Makes the clients of an endpoint: `app.dispatch.scheduler.clients`."""

    def unary(self, workload: Workload, place: Place) -> UnaryTarget: ...

    def stream(
        self, workload: Workload, place: Place, on_room: Callable[[], None],
        on_lost: Callable[[CallResult, bool], None],
    ) -> StreamTarget: ...  # fmt: skip

    def health(self, workload: Workload, place: Place) -> HealthClient: ...


class Endpoint:
    """The state of one endpoint; see the module's rules.

    Args:
        limit: This worker's share of a fixed number of messages in flight.
        on_room: Is called when there may be room again.
        on_unread: Is called with the details of an answer that is too large to read.

    Attributes:
        name: Its address, as "10.0.0.7:8443".
        in_flight: Messages on their way to it.
        since_s: Since when its state holds.
        is_leaving: Its name has it no longer (rule 5).
        is_local: It is in this worker's zone.
        standing: How it stands beside the others (rule 6).
    """

    def __init__(
        self, workload: Workload, place: Place, clients: EndpointClients,
        clock: Callable[[], float], limit: Callable[[], int], on_room: Callable[[], None],
        on_unread: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.name = place.name
        self.breaker = CircuitBreaker(workload.spec.breaker.limits())
        self.in_flight = 0
        self.is_leaving = self.is_local = False
        self.since_s = clock()
        self._state = "ready"
        self._last_failure = ""  # its words
        self.standing = Standing()
        self.adaptive: AdaptiveLimit | None = None
        self.latency = MeanLatency()
        self.target = clients.unary(workload, place)
        self.health = HealthWatch(place.name, clients.health(workload, place), on_room)
        self._clock = clock
        self._limit = limit
        self._on_room = on_room
        self._on_unread = on_unread
        self._stream: StreamTarget | None = None
        self._probe_connects = False  # the last probe went into connecting the stream
        self._never_unary = workload.spec.target.contract == "stream"
        if workload.spec.target.contract != "unary":
            self._stream = clients.stream(workload, place, self._on_stream_room, self._on_stream_end)
        self.change(workload)

    def change(self, workload: Workload) -> None:
        self.breaker.change(workload.spec.breaker.limits(), self._clock())
        if isinstance(workload.spec.flow.max_inflight, int):
            self.adaptive = None
        elif self.adaptive is None:
            self.adaptive = AdaptiveLimit(maximum=MAX_ADAPTIVE)
        base_s = workload.spec.target.timeout
        self.timeout = AdaptiveTimeout(base_s, max(base_s, MAXIMUM_S))

    def announce_role(self, role: SenderRole | None) -> None:
        """Sends this region's role over the stream, now and after each connect."""
        if self._stream is not None:
            self._stream.announce_role(role)

    def stay(self, may_send: Callable[[], bool]) -> None:
        """Its name has it. Messages that wait for the stream's credit go only while `may_send` is true."""
        self._set_leaving(False, may_send)

    def leave(self) -> None:
        """Gets no more messages (rule 5); those that wait for credit come back."""
        self._set_leaving(True, lambda: False)

    def _set_leaving(self, is_leaving: bool, may_send: Callable[[], bool]) -> None:
        self.is_leaving = is_leaving
        if self._stream is not None:
            self._stream.may_send = may_send

    def eject(self, why: str, now_s: float) -> None:
        """Sends it nothing for some time (rule 6)."""
        self.breaker.eject(now_s, why)
        self.standing.eject(why, now_s)

    def rest(self, code: int, started_s: float, now_s: float) -> None:
        """Takes the end of a call; its breaker is open, while others take messages (rule 6)."""
        timed_out = code == DEADLINE_EXCEEDED
        answers = self.health.answers
        if self.standing.failed_beside_others(now_s, started_s, answers, timed_out=timed_out):
            self.health.ask()

    @property
    def is_taker(self) -> bool:
        """Whether nothing speaks against sending messages to it."""
        return self.breaker.closed and self.health.serving and not self.health.silent

    @property
    def is_away(self) -> bool:
        """Whether it takes no messages. One that answers and fails them is not away."""
        return not self.health.serving or not (self.breaker.closed or self.breaker.failed)

    @property
    def limit(self) -> int:
        """The most messages in flight from this worker."""
        return self._limit() if self.adaptive is None else self.adaptive.limit

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
        if room <= 0 or not (breaker.closed or self._may_probe(now_s)):
            return 0
        stream = self.stream
        if stream is not None:
            stream.timeout_s = self.timeout_s
            room = min(room, stream.room)
            if room <= 0:
                stream.connect()  # no effect if it is connected and only has no credit
                self._probe_connects = not breaker.closed
                return 0
        return room if breaker.closed else 1

    def _may_probe(self, now_s: float) -> bool:
        is_paused = self.standing.is_paused(now_s, self.health.answers)
        return not is_paused and self.breaker.allow(now_s)

    def state(self, now_s: float) -> str:
        """A word of `EndpointStatus`; notes since when it holds."""
        if self.is_leaving:
            state = "leaving"
        elif not self.health.serving:
            state = "not-serving"
        elif not self.breaker.closed:
            state = "ejected" if self.standing.is_ejected else "probing"
        elif self.health.silent:
            state = "silent"
        else:
            state = "slow" if self.standing.slow else "ready"
        if state != self._state:
            self._state, self.since_s = state, now_s
        return state

    def status(self, now_s: float) -> EndpointStatus:
        """Its state for heartbeats."""
        breaker, adaptive, stream = self.breaker, self.adaptive, self.stream
        limit, allowed, state = self.limit, self.allowed(now_s), self.state(now_s)
        calls, latency_s = self.standing.counts(now_s), self.latency.mean_s(now_s)
        return EndpointStatus(
            name=self.name,
            local=self.is_local,
            state=state,
            for_s=round(now_s - self.since_s, 1),
            why=self.standing.slow if breaker.closed else self._why_open(),
            contract="unary" if stream is None else "stream",
            limit=limit,
            allowed=-1 if allowed == limit else allowed,
            ceiling=0 if adaptive is None else adaptive.maximum,
            phase="" if adaptive is None else str(adaptive.phase),
            in_flight=self.in_flight,
            credit=-1 if stream is None else stream.credit,
            timeout_ms=round(self.timeout_s * 1000),
            base_timeout_ms=0 if self.timeout_s == self.timeout.base_s else round(self.timeout.base_s * 1000),
            health="" if self.health.heard is None else str(self.health.heard),
            calls=calls.calls,
            failed=calls.failed,
            latency_ms=-1 if latency_s is None else round(latency_s * 1000, 2),
        )

    def _why_open(self) -> str:
        """Why its breaker is not closed, with the words of the last failure."""
        words = plain_text(self._last_failure)
        return f"{self.breaker.reason}; the last failure: {words}" if words else self.breaker.reason

    def probe_in_s(self, now_s: float) -> float | None:
        """Seconds to the next probe; None: none is needed."""
        if self.breaker.closed:
            return None
        return max(0.0, self.breaker.next_probe_at_s - now_s, self.standing.pauses_until_s - now_s)

    def wait_s(self, now_s: float) -> float:
        """Seconds until there may be room without an answer; 0: only answers make room."""
        probe_in_s = self.probe_in_s(now_s)
        if probe_in_s is not None:
            return max(probe_in_s, 0.01)
        return 0.01 if now_s - self.breaker.closed_at_s < SLOW_START_S else 0.0

    def answered(
        self, result: CallResult, count: int, started_s: float, now_s: float, *, failed: bool, spent: bool
    ) -> None:
        """Takes the common answer to `count` messages.

        Args:
            failed: It neither took the messages nor decided what happens to them.
            spent: No dead letter is allowed now.
        """
        before = self.in_flight
        self.in_flight -= count
        if self._tells_nothing(result):
            self.breaker.forgo(now_s)
            return
        # A receiver that asks for more time is there, and takes messages.
        code = OK if result.is_renewal else result.code
        if failed:
            self._last_failure = result.details
        if result.answer_too_large and code not in UNREACHED:  # a stream's is counted by `_on_stream_end`
            self._on_unread(result.details)
        was_closed = self.breaker.closed
        self.breaker.on_result(code, now_s, started_s, failed=failed, spent=spent and failed, count=count)
        latency_s = now_s - started_s
        if self.breaker.closed and not was_closed:
            self.standing.recover()
            self.timeout.reset(now_s)
            if self.adaptive is not None:
                self.adaptive.reset(now_s)
        if self.adaptive is not None:
            dropped = count if code in DROPPED else 0
            self.adaptive.on_samples(now_s, count - dropped, latency_s, before, dropped)
        if code == DEADLINE_EXCEEDED:
            self.health.ask()
            self.timeout.on_timeout(now_s, latency_s, count)
        elif code not in UNREACHED:
            self.timeout.on_answers(now_s, count, latency_s)
        if code not in UNREACHED:
            self.latency.add(latency_s, count)
        if code != CANCELLED:
            self.standing.add(count, latency_s, failed=failed)

    def _tells_nothing(self, result: CallResult) -> bool:
        """Whether this is about the message, or about one of several streams, and not about the endpoint."""
        is_one = result.loss is not None and self._stream is not None and self._stream.is_up
        return is_one or result.local_error is not None or result.too_large or result.is_planned_end

    def _on_stream_room(self) -> None:
        """The stream is up, or has room again. The probe that connected it is due as a message now."""
        if self._probe_connects:
            self._probe_connects = False
            self.breaker.forgo(self._clock())
        self._on_room()

    def _on_stream_end(self, result: CallResult, is_whole: bool) -> None:
        """A stream ended, or could not be opened; `is_whole`: so have all, since one was up."""
        now_s = self._clock()
        stream = self._stream
        if result.answer_too_large:
            self._on_unread(result.details)
        if stream is not None and self._uses_stream(stream) and is_whole and not result.is_planned_end:
            lost = result.code in FAILURES or result.code == CANCELLED
            code = result.code if lost else REFUSALS.get(result.code, UNAVAILABLE)
            self._last_failure = result.details
            self.breaker.on_result(code, now_s, now_s)
        self._on_room()

    async def close(self) -> None:
        """Closes the connections; calls in flight end as CANCELLED."""
        self.is_leaving = True
        await self.health.close()
        if self._stream is not None:
            await self._stream.close()
        await self.target.close()
