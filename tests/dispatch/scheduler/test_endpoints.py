"""Several instances of a receiver behind one address: each is an endpoint of its own."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.dispatch.jobs.head_of_line_monitor import HeadOfLineMonitor
from app.dispatch.model import outlier_detection
from app.dispatch.push.endpoint import Endpoint, Place
from app.dispatch.push.receiver import MAX_SHOWN_ENDPOINTS
from switchyard.receiver import Message, Receiver
from tests.dispatch.pump.rig import DispatchRig, dispatch_rig, numbers
from tests.dispatch.push.load_balancer import balancing

CONTRACTS = ["unary", "stream"]
PAUSE_S = 0.002


class Fleet:
    """Receivers that count what they handle; `pauses` has how long each takes for a message, and `faulty`
    which of them fail all of theirs."""

    def __init__(self, rig: DispatchRig) -> None:
        self.rig = rig
        self.receivers: list[Receiver] = []
        self.addresses: list[str] = []
        self.counts: Counter[int] = Counter()
        self.begun: list[int] = []  # the messages, as their handling began
        self.seen: list[list[Message]] = []
        self.pauses: dict[int, float] = {}
        self.faulty: set[int] = set()

    async def start(self, count: int) -> None:
        for number in range(count):
            await self.begin(number)

    async def begin(self, number: int) -> None:
        """Starts a receiver, at its former port if it had one."""

        async def handle(message: Message) -> None:
            self.counts[number] += 1
            self.begun.append(int(message.value or b""))
            if number in self.faulty:
                raise ValueError("its database is away")
            await asyncio.sleep(self.pauses.get(number, PAUSE_S))

        port = self.receivers[number].port if number < len(self.receivers) else 0
        address, seen, receiver = await self.rig.another_receiver(handle, port)
        self.seen.append(seen)
        if port:
            self.receivers[number] = receiver
        else:
            self.addresses.append(address)
            self.receivers.append(receiver)

    def endpoint(self, number: int) -> Endpoint:
        """The worker's side of a receiver."""
        return next(one for one in self.rig.main.endpoints if one.name == self.addresses[number])

    def values(self) -> Counter[bytes | None]:
        return Counter(message.value for seen in self.seen for message in seen)


@asynccontextmanager
async def fleet(count: int, contract: str, **spec: Any) -> AsyncIterator[Fleet]:
    """`count` receivers behind one address, and a workload that pushes to it."""
    async with dispatch_rig(lambda _: None) as rig:
        made = Fleet(rig)
        await made.start(count)
        target = {
            "address": "ipv4:" + ",".join(made.addresses),
            "contract": contract,
            **spec.pop("target", {}),
        }
        rig.run(target=target, **spec)
        yield made


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_messages_are_shared_among_the_endpoints(contract: str) -> None:
    async with fleet(3, contract, flow={"max_inflight": 60}) as made:
        rig, pump = made.rig, made.rig.pump()
        rig.feed(pump, numbers(3_000))
        await rig.idle()
        assert made.values() == {value: 1 for _, value in numbers(3_000)}
        assert max(made.counts.values()) < 0.4 * 3_000, made.counts


async def test_a_slow_endpoint_gets_fewer_messages() -> None:
    async with fleet(3, "unary", flow={"max_inflight": 60}) as made:
        made.pauses[0] = 150 * PAUSE_S
        pump = made.rig.pump()
        made.rig.feed(pump, numbers(3_000))
        await made.rig.idle()
        assert made.counts[0] < made.counts[1] / 3
        assert made.counts[0] < made.counts[2] / 3


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_an_endpoint_that_stops_loses_no_message_and_the_workload_does_not_pause(
    contract: str,
) -> None:
    async with fleet(3, contract, flow={"max_inflight": 60}) as made:
        rig, pump = made.rig, made.rig.pump()
        rig.feed(pump, numbers(6_000))
        await rig.until(lambda: made.counts[0] > 300)
        stopping = asyncio.ensure_future(made.receivers[0].stop(0))
        longest_s, last, last_s = 0.0, made.counts.total(), time.monotonic()
        while pump.tracker.base < 6_000:
            await asyncio.sleep(0.005)
            if made.counts.total() != last or pump.tracker.base == 6_000:
                now_s = time.monotonic()
                longest_s, last, last_s = max(longest_s, now_s - last_s), made.counts.total(), now_s
        await stopping
        assert longest_s < 1.0
        assert set(made.values()) == {value for _, value in numbers(6_000)}
        assert rig.main.closed
        assert not rig.copied.records
        assert {message.attempt for seen in made.seen for message in seen} <= {1, 2}


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_an_endpoint_that_is_back_gets_messages_again(contract: str) -> None:
    async with fleet(2, contract, flow={"max_inflight": 20}) as made:
        rig, pump = made.rig, made.rig.pump()
        rig.feed(pump, numbers(200))
        await rig.idle()
        await made.receivers[0].stop(0)
        rig.feed(pump, numbers(200, 200))
        await rig.idle()
        before = made.counts[0]
        await made.begin(0)
        at = 400
        while made.counts[0] == before:
            rig.feed(pump, numbers(100, at))
            at += 100
            await rig.idle()
        assert set(made.values()) == {value for _, value in numbers(at)}


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize(("ordering", "keys"), [("key", 20), ("partition", 1)])
async def test_the_order_stays_while_an_endpoint_stops(contract: str, ordering: str, keys: int) -> None:
    async with fleet(3, contract, flow={"max_inflight": 60}, ordering=ordering) as made:
        rig, pump = made.rig, made.rig.pump()
        rig.feed(pump, numbers(1_500, keys=keys))
        await rig.until(lambda: made.counts[0] > 50)
        await made.receivers[0].stop(0)
        await rig.idle()
        first = dict.fromkeys(made.begun)  # in the order in which their handling began
        assert len(first) == 1_500
        for key in range(keys):
            of_key = [number for number in first if number % keys == key]
            assert of_key == sorted(of_key)


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("limit", [90, "adaptive"])
async def test_an_endpoint_that_is_back_gets_messages_under_the_load_of_several_partitions(
    contract: str, limit: int | str
) -> None:
    async with fleet(3, contract, flow={"max_inflight": limit}) as made:
        rig, pumps, at = made.rig, [made.rig.pump(partition) for partition in range(3)], 0

        async def feed_until(condition: Callable[[], bool]) -> None:
            nonlocal at
            while not condition():
                for pump in pumps:
                    rig.feed(pump, numbers(200, at))
                at += 200
                await rig.until(lambda fed=at: all(pump.tracker.base > fed - 150 for pump in pumps))  # type: ignore[misc]

        await feed_until(lambda: made.counts[0] > 100)
        await made.receivers[0].stop(0)
        await feed_until(lambda: not made.endpoint(0).breaker.closed)
        await made.begin(0)
        before = made.counts[0]
        await feed_until(lambda: made.counts[0] > before + 100)
        await rig.idle()
        assert set(made.values()) == {value for _, value in numbers(at)}


async def test_several_partitions_use_the_limits_of_all_endpoints() -> None:
    async with fleet(10, "unary") as made:
        for number in range(10):
            made.pauses[number] = 3_600.0
        rig = made.rig
        for partition in range(4):
            rig.feed(rig.pump(partition), numbers(1_000))
        await rig.until(lambda: rig.main.in_flight > 0.8 * rig.main.limit)
        assert min(endpoint.in_flight for endpoint in rig.main.endpoints) > 0


async def test_without_a_sound_endpoint_all_get_some_messages() -> None:
    async with fleet(4, "unary", flow={"max_inflight": 60}) as made:
        rig, pump = made.rig, made.rig.pump()
        await rig.until(lambda: all(endpoint.health.answers for endpoint in rig.main.endpoints))
        for endpoint in rig.main.endpoints:
            endpoint.health.silent = True
        rig.feed(pump, numbers(400))
        await rig.idle()
        assert min(made.counts[number] for number in range(4)) > 40


async def test_a_head_is_not_moved_away_while_no_endpoint_takes_messages() -> None:
    async with fleet(2, "unary") as made:
        first, second = made.rig.main.endpoints
        first.health.serving = False
        second.breaker.open(time.monotonic(), "away")
        assert not made.rig.runtime.is_serving(None, time.monotonic())
        second.breaker.on_success(time.monotonic() + 1, time.monotonic() + 1)
        assert made.rig.runtime.is_serving(None, time.monotonic())


async def test_a_name_that_has_an_endpoint_again_has_the_former_one() -> None:
    async with fleet(2, "unary", flow={"max_inflight": 20}) as made:
        made.pauses[0] = 3_600.0
        rig, pump = made.rig, made.rig.pump()
        rig.feed(pump, numbers(40))
        await rig.until(lambda: made.counts[0] > 0)
        endpoint = made.endpoint(0)
        places = [Place(rig.main.address, name, total=4) for name in made.addresses]
        rig.main._follow([places[1]])
        assert endpoint.is_leaving
        assert [one.state for one in rig.main.status(time.monotonic(), 0).endpoints] == ["leaving", "ready"]
        rig.main._follow(places)
        assert made.endpoint(0) is endpoint
        assert not endpoint.is_leaving
        assert len(rig.main.status(time.monotonic(), 0).endpoints) == 2


async def test_the_endpoints_that_are_not_well_are_among_those_that_are_shown() -> None:
    addresses = ",".join(f"127.0.0.1:{port}" for port in range(1, MAX_SHOWN_ENDPOINTS + 20))
    async with dispatch_rig(lambda _: None, target={"address": f"ipv4:{addresses}"}) as rig:
        rig.main.endpoints[-1].breaker.open(time.monotonic(), "away")
        status = rig.main.status(time.monotonic(), 0)
        assert status.endpoints[0].state == "probing"
        assert (len(status.endpoints), status.more_endpoints) == (MAX_SHOWN_ENDPOINTS, 19)


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_an_endpoint_that_fails_what_the_others_take_gets_nothing_for_a_while(
    contract: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlier_detection, "PAUSE_S", 1.0)
    async with fleet(3, contract, flow={"max_inflight": 60}) as made:
        rig, pump, at = made.rig, made.rig.pump(), 0
        made.faulty.add(0)

        async def feed_until(condition: Callable[[], bool]) -> None:
            nonlocal at
            while not condition():
                rig.feed(pump, numbers(100, at))
                at += 100
                await rig.until(lambda fed=at: pump.tracker.base > fed - 50)  # type: ignore[misc]

        await feed_until(lambda: made.endpoint(0).standing.is_ejected)
        failed, taken = made.counts[0], made.counts[1]
        assert "messages, the others 0 of" in made.endpoint(0).status(time.monotonic()).why
        assert rig.main.closed
        reported: list[tuple[Any, ...]] = []
        monitor = HeadOfLineMonitor({}, {"billing/orders": rig.runtime}, lambda *said: reported.append(said))
        for _ in range(2):
            monitor.look(time.monotonic())
        ((kind, key, message, _, is_over),) = reported
        assert (kind, key) == ("endpoint-outlier", "billing/orders")
        assert message.startswith(f"endpoint {made.addresses[0]} gets no messages for now: it failed ")
        assert not is_over()
        await feed_until(lambda: made.counts[1] > taken + 500)
        assert made.counts[0] <= failed + 60 + 1, "what was in flight, and a probe"
        made.faulty.clear()
        await feed_until(lambda: made.endpoint(0).breaker.closed)
        assert not made.endpoint(0).standing.is_ejected
        await rig.idle()
        assert set(made.values()) == {value for _, value in numbers(at)}
        assert not rig.copied.records, "no message was given up"
    assert is_over(), "its workload is closed"


async def test_a_slow_endpoint_is_shown_and_yields_to_another_that_is_as_busy() -> None:
    async with fleet(3, "unary", ordering="partition") as made:
        made.pauses[0] = 30 * PAUSE_S
        rig, pump, at = made.rig, made.rig.pump(), 0
        while not made.endpoint(0).standing.slow:
            rig.feed(pump, numbers(50, at))
            at += 50
            await rig.idle()
        assert "ms for a message, the others" in made.endpoint(0).status(time.monotonic()).why
        assert made.endpoint(0).state(time.monotonic()) == "slow"
        before = made.counts[0]
        rig.feed(pump, numbers(200, at))
        await rig.idle()
        assert made.counts[0] - before < 20


@pytest.mark.parametrize("ordering", ["none", "partition"])
async def test_one_that_hangs_costs_the_others_a_few_timeouts_at_most(ordering: str) -> None:
    spec: dict[str, Any] = {"ordering": ordering, "flow": {"max_inflight": 60}}
    async with fleet(3, "unary", **spec, target={"timeout": "300ms"}) as made:
        made.pauses[0] = 3_600.0
        rig, pump = made.rig, made.rig.pump()
        rig.feed(pump, numbers(3_000))
        await rig.idle()
        assert set(made.values()) == {value for _, value in numbers(3_000)}
        assert made.counts[0] < 150
        assert rig.main.closed
        assert not rig.copied.records
        assert made.endpoint(0).state(time.monotonic()) == "probing"


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_an_endpoint_that_does_not_serve_drains_and_the_others_go_on(contract: str) -> None:
    async with fleet(3, contract, flow={"max_inflight": 60}, target={"timeout": "1h"}) as made:
        rig, pump = made.rig, made.rig.pump()
        made.pauses[0] = 3_600.0  # it keeps what it has, and so its stopping takes the whole time
        rig.feed(pump, numbers(300))
        await rig.until(lambda: made.counts[0] > 0)
        stopping = asyncio.ensure_future(made.receivers[0].stop(3_600.0))
        await rig.until(lambda: not made.endpoint(0).health.serving)
        assert made.endpoint(0).state(time.monotonic()) == "not-serving"
        held = made.endpoint(0).in_flight
        rig.feed(pump, numbers(600, 300))
        await rig.until(lambda: made.counts[1] + made.counts[2] == 900 - made.endpoint(0).in_flight)
        assert made.endpoint(0).in_flight <= held
        assert rig.main.takes
        stopping.cancel()


async def test_endpoints_that_are_away_for_good_keep_no_outlier_from_being_ejected() -> None:
    """As the addresses of a family that the network between does not carry."""
    async with fleet(6, "unary", flow={"max_inflight": 60}) as made:
        rig, pump, at = made.rig, made.rig.pump(), 0
        for receiver in made.receivers[3:]:
            await receiver.stop(0)
        made.faulty.add(0)
        while not made.endpoint(0).standing.is_ejected:
            rig.feed(pump, numbers(100, at))
            at += 100
            await rig.until(lambda fed=at: pump.tracker.base > fed - 50)  # type: ignore[misc]
        assert [made.endpoint(number).is_taker for number in range(6)] == [False, True, True, *[False] * 3]
        made.faulty.clear()
        await rig.idle()
        assert set(made.values()) == {value for _, value in numbers(at)}


async def test_the_last_endpoint_that_is_left_gets_everything_although_it_was_ejected() -> None:
    async with fleet(2, "unary", flow={"max_inflight": 20}) as made:
        rig, pump, at = made.rig, made.rig.pump(), 0
        made.faulty.add(0)
        while not made.endpoint(0).standing.is_ejected:
            rig.feed(pump, numbers(50, at))
            at += 50
            await rig.idle()
        made.faulty.clear()
        await made.receivers[1].stop(0)
        rig.feed(pump, numbers(200, at))
        await rig.idle()
        assert time.monotonic() < made.endpoint(0).breaker.closed_at_s + outlier_detection.PAUSE_S
        assert set(made.values()) == {value for _, value in numbers(at + 200)}


@pytest.mark.parametrize("balancers", [1, 2])
@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_new_instance_behind_load_balancers_gets_messages(contract: str, balancers: int) -> None:
    if {place[0] for *_, place in socket.getaddrinfo("localhost", 1)} != {"127.0.0.1"}:
        pytest.skip("localhost has several addresses here, and so it is no load balancer's")
    async with dispatch_rig(lambda _: None) as rig:
        made, at = Fleet(rig), 0
        await made.start(3)
        receivers = made.addresses[:2]
        async with balancing(lambda: receivers) as balancer, balancing(lambda: receivers) as other:
            ports = [balancer.port, other.port][:balancers]
            address = ",".join(f"localhost:{port}" for port in ports)
            target = {"address": address, "contract": contract, "max_connection_age": "1s"}
            rig.run(target=target, flow={"max_inflight": 60})
            pump = rig.pump()

            async def feed_until(condition: Callable[[], bool]) -> None:
                nonlocal at
                while not condition():
                    rig.feed(pump, numbers(100, at))
                    at += 100
                    await rig.idle()

            await feed_until(lambda: made.counts[0] > 100 and made.counts[1] > 100)
            receivers.append(made.addresses[2])
            await feed_until(lambda: made.counts[2] > 300)
            assert made.values() == {value: 1 for _, value in numbers(at)}
            assert {message.attempt for seen in made.seen for message in seen} == {1}
            assert all(endpoint.breaker.closed for endpoint in rig.main.endpoints)


async def test_one_of_several_streams_that_is_lost_opens_no_breaker() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        made = Fleet(rig)
        await made.start(4)
        made.pauses = dict.fromkeys(range(4), 1.0)
        async with balancing(lambda: made.addresses) as balancer:
            target = {"address": f"127.0.0.1:{balancer.port}", "contract": "stream", "connections": 8}
            rig.run(target=target, flow={"max_inflight": 64})
            pump = rig.pump()
            fed = 0
            while fed < 60:  # each is a call of its own, and each stream has several
                rig.feed(pump, numbers(1, fed))
                fed += 1
                await asyncio.sleep(PAUSE_S)
            await rig.until(lambda: made.counts[0] >= 3)
            (endpoint,) = rig.main.endpoints
            closed_at_s = endpoint.breaker.closed_at_s
            balancer.cut(made.addresses[0])
            await rig.idle()
            assert len(made.begun) > fed, "messages were lost with the stream, and came again"
            assert made.values().keys() == {value for _, value in numbers(fed)}
            assert endpoint.breaker.closed
            assert endpoint.breaker.closed_at_s == closed_at_s


async def test_a_lost_endpoint_has_its_name_looked_up_at_once() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        rig.run(target={"address": f"localhost:{rig.port}"})
        pump = rig.pump()
        rig.feed(pump, numbers(10))
        await rig.idle()
        asked: list[None] = []
        names = rig.main._names
        assert names is not None
        names.ask = lambda: asked.append(None)  # type: ignore[method-assign]
        await rig.receiver.stop(0)
        rig.feed(pump, numbers(10, 10))
        await rig.until(lambda: bool(asked))
        await rig.start_receiver()
        await rig.idle()


@pytest.mark.parametrize("contract", CONTRACTS)
async def test_a_worker_prefers_the_instances_of_its_zone_as_long_as_one_takes_messages(
    contract: str,
) -> None:
    async with fleet(3, contract, flow={"max_inflight": 60}) as made:
        rig, own = made.rig, made.addresses[0]
        await rig.runtime.close()
        target = {
            "address": ",".join(made.addresses[1:]),
            "contract": contract,
            "zones": {"a": own, "b": "x:1"},
        }
        rig.run(zone="a", target=target, flow={"max_inflight": 60})
        pump = rig.pump()
        assert [one.name for one in rig.main.endpoints if one.is_local] == [own]
        rig.feed(pump, numbers(20))
        await rig.idle()
        await rig.until(lambda: made.endpoint(0).room(time.monotonic()) > 0)
        before = made.counts[0]
        for at in range(20, 500, 20):
            rig.feed(pump, numbers(20, at))
            await rig.idle()
        assert made.counts[0] - before > 0.9 * 480
        await made.receivers[0].stop(0)
        others = made.counts.copy()
        for at in range(500, 1_500, 20):
            rig.feed(pump, numbers(20, at))
            await rig.idle()
        assert made.counts[1] > others[1] + 50
        assert made.counts[2] > others[2] + 50
        await made.begin(0)
        back, at = made.counts[0], 1_500
        while made.counts[0] < back + 100:
            rig.feed(pump, numbers(20, at))
            at += 20
            await rig.idle()
        assert set(made.values()) == {value for _, value in numbers(at)}


async def test_the_zone_of_a_worker_counts_only_where_the_definition_has_it() -> None:
    async with fleet(2, "unary") as made:
        rig = made.rig
        await rig.runtime.close()
        target = {"address": made.addresses[0], "zones": {"a": made.addresses[1]}}
        rig.run(zone="elsewhere", target=target)
        assert [(one.name, one.is_local) for one in rig.main.endpoints] == [(made.addresses[0], False)]
