"""One receiver of a workload as this worker sees it: its endpoints, and which of them gets the next message.

A workload has one receiver, or with isolation one for each target. Trouble of one does not affect the others.
The messages that wait for it are in `app.dispatch.scheduler.receiver_queues`.

Rules (tests/dispatch/scheduler/test_endpoints.py)
1. A name has as many endpoints as it has addresses. It is looked up again by time, and when an endpoint is
   lost. An endpoint that comes gets messages at once; one that goes ends those that it has.
2. The less busy of two endpoints that are chosen at random gets the next messages (Envoy's "least request").
   If neither has room, any other that has it. A run of messages takes no more than the endpoint's part of
   the limit, so that the others get some of it, too.
3. A fixed limit of messages in flight holds for all endpoints together. One that hangs must not have all of
   it, so an endpoint has half of it at most while another may take messages. An adaptive limit is each one's.
4. An endpoint that is away gets a probe in its turn, while messages flow to the others. One that no longer
   answers health checks gets nothing while another does. The receiver is away when all its endpoints are.
5. A message that is sent again goes to another endpoint, if there is one with room. If its endpoint asked for
   more time, it goes there again.
6. Endpoints in the worker's own zone get the messages, as far as they have room.
7. An endpoint that fails messages which the others take is ejected for some time. At least half of
   those that are not away stay.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from app.dispatch.model.circuit_breaker import FAILURES, BreakerState
from app.dispatch.model.head_of_line import CREDIT_MAX
from app.dispatch.model.outcome import KafkaAction
from app.dispatch.model.outlier_detection import INTERVAL_S, failing, slow
from app.dispatch.model.throughput_diagnosis import HOLDING, EndpointStatus, TargetStatus
from app.dispatch.push.endpoint import Endpoint, EndpointClients, Place
from app.kernel.grpc_status import ALREADY_EXISTS, CANCELLED, DEADLINE_EXCEEDED, OK
from app.kernel.limit_shares import ALL
from app.kernel.repeated_trouble import RepeatedTrouble

if TYPE_CHECKING:
    from app.dispatch.definition import Workload
    from app.dispatch.push.call_result import CallResult
    from app.dispatch.push.metadata import SenderRole

TAKEN = {OK, ALREADY_EXISTS}
UNRESOLVED_POLL_S = 0.1
HANGS = 3  # calls in a row that time out, while other endpoints answer
LOOK_S = 0.01  # between looks at all endpoints, while messages flow
MAX_SHOWN_ENDPOINTS = 50  # in every heartbeat
MAX_ROOM = 1 << 30
CLOSED = str(BreakerState.CLOSED)
BREAKER_STATES = (CLOSED, str(BreakerState.HALF_OPEN), str(BreakerState.OPEN))  # the best first


def was_taken(result: CallResult) -> bool:
    """Whether the receiver took the message, or decided itself to skip, to stash or to renew it."""
    action = None if result.action is None else KafkaAction.read(result.action)
    return result.code in TAKEN if action is None else action is not KafkaAction.RETRY


Follow = Callable[[Sequence[Place]], None]


class NameWatch(Protocol):
    """The look-ups of a name: `app.grpc_client.resolver`."""

    @property
    def error(self) -> str: ...

    def ask(self) -> None: ...

    async def close(self) -> None: ...


class ReceiverClients(EndpointClients, Protocol):
    """Makes the clients of a receiver: `app.dispatch.scheduler.clients`."""

    def endpoints(self, workload: Workload, address: str, follow: Follow) -> NameWatch:
        """Calls `follow` with the endpoints: at once, or each time that a look-up finds others."""


class Receiver:
    """The state of one receiver; see the module's rules.

    Args:
        on_room: Is called when there may be room again.
        may_send: Whether anything may be sent now.

    Attributes:
        endpoints: Those of the last look-up.
        chosen: That for which `room` was told last; `free` is the room of all endpoints then.
        in_flight: Messages on their way to it; `out`: how many of them each pump has sent.
        taken: Messages that it took, with any answer.
        credit: Spent by giving up a suspect, earned by messages that it takes.
        fixed: The limit of messages in flight in all workers; None: each endpoint finds its own.
        share: The part of the limits that this worker may use.
        unread: Answers that are too large to read.
    """

    def __init__(
        self, workload: Workload, address: str, clients: ReceiverClients, clock: Callable[[], float],
        on_room: Callable[[], None], may_send: Callable[[], bool] = lambda: True,
    ) -> None:  # fmt: skip
        self.address = address
        self.endpoints: list[Endpoint] = []
        self._takers: list[Endpoint] = []  # of the last look
        self._near: list[Endpoint] = []  # those of them in the own zone, or all if there is none
        self.chosen: Endpoint | None = None
        self.free = 0
        self.in_flight = 0
        self.out: Counter[object] = Counter()
        self.unread = RepeatedTrouble()
        self.taken = 0
        self.credit = 1
        self.share = ALL
        self._workload = workload
        self._clients = clients
        self._clock = clock
        self._on_room = on_room
        self._may_send = may_send
        self._role: SenderRole | None = None
        self._leaving: set[Endpoint] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._judge_at_s = self._look_at_s = 0.0
        self.change(workload)
        self._names = clients.endpoints(workload, address, self._follow)

    def change(self, workload: Workload) -> None:
        wanted = workload.spec.flow.max_inflight
        self.fixed = wanted if isinstance(wanted, int) else None
        self._workload = workload
        for endpoint in (*self.endpoints, *self._leaving):
            endpoint.change(workload)

    def _follow(self, places: Sequence[Place]) -> None:
        """These are the endpoints from now on (rule 1)."""
        known = {endpoint.name: endpoint for endpoint in self.endpoints}
        left = {endpoint.name: endpoint for endpoint in self._leaving}
        self.endpoints = []
        for place in places:
            if (back := left.get(place.name)) is not None:
                self._leaving.discard(back)
                back.stay(self._may_send)
            stays = known.pop(place.name) if place.name in known else back
            endpoint = stays or self._new(place)
            endpoint.is_local = place.is_local
            self.endpoints.append(endpoint)
        self._look_at_s = 0.0
        for endpoint in known.values():
            self._leaving.add(endpoint)
            endpoint.leave()
            self._close_when_idle(endpoint)
        if len(places) == 1:
            self.endpoints[0].standing.end_pause()
        asyncio.get_running_loop().call_soon(self._on_room)

    def _new(self, place: Place) -> Endpoint:
        endpoint = Endpoint(
            self._workload, place, self._clients, self._clock, self._endpoint_limit, self._on_room,
            self.unread.record,
        )  # fmt: skip
        endpoint.announce_role(self._role)
        endpoint.stay(self._may_send)
        return endpoint

    def _fixed_limit(self) -> int:
        return self.share.in_flight(self.fixed or 1)

    def _endpoint_limit(self) -> int:
        """One endpoint's part of a fixed limit (rule 3)."""
        whole = self._fixed_limit()
        takers = len(self._takers) or sum(map(_may_take, self.endpoints))
        return whole if takers < 2 else -(-whole // 2)

    def announce_role(self, role: SenderRole | None) -> None:
        """Sends this region's role over the streams, now and after each connect."""
        self._role = role
        for endpoint in (*self.endpoints, *self._leaving):
            endpoint.announce_role(role)

    # -- its state ---------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the circuit breaker of any endpoint is closed."""
        return any(endpoint.breaker.closed for endpoint in self.endpoints)

    @property
    def failed(self) -> bool:
        """Whether its endpoints answer, but fail all messages."""
        return not self.closed and any(endpoint.breaker.failed for endpoint in self.endpoints)

    @property
    def takes(self) -> bool:
        """Whether any endpoint takes messages."""
        return any(map(_may_take, self.endpoints))

    @property
    def probes(self) -> bool:
        """Whether the next message to the chosen endpoint is a probe."""
        return self.chosen is not None and not self.chosen.breaker.closed

    @property
    def is_away(self) -> bool:
        """Whether it takes no messages. One that answers and fails them is not away."""
        return all(endpoint.is_away for endpoint in self.endpoints)

    @property
    def heard(self) -> int:
        """The answers to health checks so far."""
        return sum(endpoint.health.answers for endpoint in self.endpoints)

    def ask_health(self) -> None:
        for endpoint in self.endpoints:
            endpoint.health.ask()

    @property
    def streams(self) -> bool:
        """Whether messages go over a stream to any endpoint."""
        may_stream = self._workload.spec.target.contract != "unary"
        return may_stream and any(endpoint.stream is not None for endpoint in self.endpoints)

    @property
    def limit(self) -> int:
        """The most messages in flight from this worker."""
        if self.fixed is not None:
            return self._fixed_limit()
        return sum(endpoint.limit for endpoint in self.endpoints)

    # -- choosing ----------------------------------------------------------------------------------

    def room(self, now_s: float) -> int:
        """How many messages may go to the endpoint that this call chooses; `free` then has those of all
        endpoints. While its breaker is not closed that is at most a probe: send or `forgo` it."""
        endpoints = self.endpoints
        if len(endpoints) == 1:
            chosen = self.chosen = endpoints[0]
            self.free = chosen.room(now_s)
            return self.free
        left = MAX_ROOM if self.fixed is None else self._fixed_limit() - self.in_flight
        if left <= 0 or not endpoints:
            return 0
        if now_s >= self._look_at_s:
            self._look(now_s)
            if self._choose((one for one in endpoints if not one.breaker.closed), now_s):
                return 1
        room = self._choose(self._two(self._near), now_s)
        if not room:
            self._look(now_s)
            room = self._choose(self._near, now_s)
        if not room and len(self._near) < len(self._takers):
            room = self._choose((*self._two(self._takers), *self._takers), now_s)
        if not room and not self._takers:
            for endpoint in endpoints:
                endpoint.standing.end_pause()
            room = self._choose((*self._two(endpoints), *endpoints), now_s)
        self.free = min(left, room * max(1, len(self._takers)))
        return min(room, left, self._most_at_once())

    def _look(self, now_s: float) -> None:
        """Finds out which endpoints may take messages, at least every `LOOK_S`."""
        self._look_at_s = now_s + LOOK_S
        self._takers = [one for one in self.endpoints if one.is_taker]
        self._near = [one for one in self._takers if one.is_local] or self._takers

    def _most_at_once(self) -> int:
        """The largest run, so that endpoints with a common limit each get some of it (rule 2)."""
        return MAX_ROOM if self.fixed is None else -(-self._fixed_limit() // len(self.endpoints))

    def _two(self, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Two of these by chance, the less busy one first (rule 2)."""
        count = len(endpoints)
        if count < 2:
            return endpoints
        at = int(random.random() * count)  # noqa: S311 - balances
        others = int(random.random() * (count - 1))  # noqa: S311 - balances
        one, other = endpoints[at], endpoints[at - 1 - others]
        return (one, other) if _load(one) <= _load(other) else (other, one)

    def _choose(self, endpoints: Iterable[Endpoint], now_s: float) -> int:
        """Chooses the first one that has room; returns the room."""
        for endpoint in endpoints:
            if (room := endpoint.room(now_s)) > 0:
                self.chosen = endpoint
                return room
        return 0

    def another(self, endpoint: Endpoint, now_s: float) -> Endpoint:
        """An endpoint with room other than this chosen one (rule 5), or else this one."""
        others = [one for one in self.endpoints if one is not endpoint and one.is_taker]
        random.shuffle(others)
        others.sort(key=lambda one: not one.is_local)
        for other in others:
            if other.room(now_s) > 0:
                endpoint.breaker.forgo(now_s)
                return other
        return endpoint

    def same(self, last: Endpoint | None, chosen: Endpoint, now_s: float) -> Endpoint:
        """The last endpoint of a message, if it has room, or else the chosen one (rule 5)."""
        if last is None or last is chosen or last not in self.endpoints or not last.is_taker:
            return chosen
        if last.room(now_s) <= 0:
            return chosen
        chosen.breaker.forgo(now_s)
        return last

    def forgo(self, now_s: float) -> None:
        """Nothing is sent to the chosen endpoint."""
        if self.chosen is not None:
            self.chosen.breaker.forgo(now_s)

    def wait_s(self, now_s: float) -> float:
        """Seconds until there may be room without an answer; 0: only answers make room."""
        if not self.endpoints:
            return UNRESOLVED_POLL_S
        waits = [wait_s for endpoint in self.endpoints if (wait_s := endpoint.wait_s(now_s))]
        return min(waits, default=0.0)

    # -- messages ----------------------------------------------------------------------------------

    def sent(self, endpoint: Endpoint, pump: object, count: int) -> None:
        """`count` messages of the pump are in flight from now on."""
        endpoint.in_flight += count
        self.in_flight += count
        self.out[pump] += count

    def answered(
        self, endpoint: Endpoint, pump: object, result: CallResult, count: int, started_s: float,
        now_s: float, *, spent: bool,
    ) -> None:  # fmt: skip
        """Takes an endpoint's common answer to `count` messages of the pump; `spent`: no dead letter is
        allowed now."""
        self.in_flight -= count
        self.out[pump] -= count
        if not self.out[pump]:
            del self.out[pump]
        endpoint.answered(result, count, started_s, now_s, failed=not was_taken(result), spent=spent)
        is_about_endpoint = result.local_error is None and not result.too_large and not result.is_planned_end
        is_failure = result.code in FAILURES or result.code == CANCELLED
        if is_about_endpoint and (result.is_renewal or not is_failure):
            self.taken += count
            self.credit = min(CREDIT_MAX, self.credit + count)
        if endpoint.is_leaving:
            self._close_when_idle(endpoint)
        elif endpoint.breaker.streak or not endpoint.breaker.closed:
            self._after_failure(endpoint, result.code, started_s, now_s)
        if now_s >= self._judge_at_s:
            self._judge_at_s = now_s + INTERVAL_S
            self._judge(now_s)

    def _after_failure(self, endpoint: Endpoint, code: int, started_s: float, now_s: float) -> None:
        breaker = endpoint.breaker
        do_others_take = any(one.is_taker for one in self.endpoints if one is not endpoint)
        if do_others_take and breaker.closed and code == DEADLINE_EXCEEDED and breaker.streak >= HANGS:
            breaker.open(now_s, f"{breaker.streak} calls in a row timed out, while other endpoints answer")
        if not breaker.closed:
            self._names.ask()
            if do_others_take:
                endpoint.rest(code, started_s, now_s)

    def _judge(self, now_s: float) -> None:
        """Ejects endpoints that fail messages, and finds slow ones (rule 7)."""
        counts = [endpoint.standing.counts(now_s) for endpoint in self.endpoints]
        ejected = sum(one.standing.is_ejected for one in self.endpoints)
        may_eject = (ejected + sum(one.is_taker for one in self.endpoints)) // 2 - ejected
        outliers = [one for one in failing(counts) if self.endpoints[one.number].breaker.closed]
        for outlier in outliers[: max(0, may_eject)]:
            self.endpoints[outlier.number].eject(outlier.why, now_s)
        is_slow = dict(slow(counts))
        for number, endpoint in enumerate(self.endpoints):
            endpoint.standing.judge_speed(is_slow.get(number, ""), now_s)

    def _close_when_idle(self, endpoint: Endpoint) -> None:
        if endpoint in self._leaving and not endpoint.in_flight:
            self._leaving.discard(endpoint)
            task = asyncio.get_running_loop().create_task(endpoint.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def status(self, now_s: float, held: int) -> TargetStatus:
        """Its state for heartbeats; `held` messages wait for it."""
        found = [endpoint.status(now_s) for endpoint in (*self.endpoints, *self._leaving)]
        if not self.endpoints:
            why = self._names.error or "its name is being looked up"
            return TargetStatus(address=self.address, held=held, unresolved=why, breaker=self.breaker_state)
        number = min(range(len(self.endpoints)), key=lambda at: _badness(self.endpoints[at], found[at]))
        best, breaker = found[number], self.endpoints[number].breaker
        probe_in_s = self.endpoints[number].probe_in_s(now_s)
        recent = [endpoint.breaker.recent(now_s) for endpoint in self.endpoints]
        streams = [one.credit for one in found if one.credit >= 0]
        return TargetStatus(
            address=self.address,
            contract=best.contract,
            breaker=str(breaker.state),
            why_open="" if breaker.closed else best.why,
            probe_in_ms=-1 if probe_in_s is None else round(probe_in_s * 1000),
            limit=self.limit,
            allowed=best.allowed if len(found) == 1 else -1,
            ceiling=sum(one.ceiling for one in found),
            phase=best.phase,
            in_flight=self.in_flight,
            credit=sum(streams) if streams else -1,
            held=held,
            timeout_ms=best.timeout_ms,
            base_timeout_ms=best.base_timeout_ms,
            health=best.health,
            calls=sum(calls for calls, _ in recent),
            failed=sum(failed for _, failed in recent),
            latency_ms=_mean_latency_ms(found),
            answered=sum(one.calls for one in found),
            endpoints=sorted(found, key=lambda one: one.state == "ready")[:MAX_SHOWN_ENDPOINTS],
            more_endpoints=max(0, len(found) - MAX_SHOWN_ENDPOINTS),
        )

    @property
    def breaker_state(self) -> str:
        """The state of the breaker of the endpoint that is best off, in a word."""
        states = {str(endpoint.breaker.state) for endpoint in self.endpoints}
        return next((state for state in BREAKER_STATES if state in states), CLOSED)

    async def close(self) -> None:
        """Closes the connections; calls in flight end as CANCELLED."""
        await self._names.close()
        await asyncio.gather(*(endpoint.close() for endpoint in (*self.endpoints, *self._leaving)))
        await asyncio.gather(*self._closing)


def _may_take(endpoint: Endpoint) -> bool:
    return endpoint.breaker.closed and endpoint.health.serving


def _load(endpoint: Endpoint) -> tuple[int, bool]:
    """A slow endpoint counts as busier than another one with as many messages."""
    return endpoint.in_flight, endpoint.standing.slow != ""


def _badness(endpoint: Endpoint, status: EndpointStatus) -> tuple[bool, bool]:
    return not endpoint.breaker.closed, status.health in HOLDING


def _mean_latency_ms(found: Sequence[EndpointStatus]) -> float:
    """By calls, as far as any were answered lately."""
    known = [(one.latency_ms, max(1, one.calls)) for one in found if one.latency_ms >= 0]
    weight = sum(calls for _, calls in known)
    return round(sum(latency_ms * calls for latency_ms, calls in known) / weight, 2) if known else -1
