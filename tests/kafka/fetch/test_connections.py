"""Which connection fetches which partitions of a broker (`app.kafka.fetch.broker_connections`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import pytest

from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.fetch.broker_connections import FIRST, JOIN_S, LAST, BrokerConnections
from app.kafka.fetch.deliveries import PARTITION_BUFFER_BYTES, ByteBudget, FetchKey, PartitionFetch
from app.kafka.fetch.protocol import Fetch
from app.kafka.fetch.service import FetchService
from tests.kafka.conftest import ENOUGH_S, Start, create, producing

NODE = 1
OTHER = 1  # a connection that is neither the first nor the last


class Rig:
    """A service without a broker, whose partitions have just been answered."""

    def __init__(self) -> None:
        async def deliver(_: Any) -> None:
            raise AssertionError("nothing is fetched")

        self.service = FetchService(
            ClusterClient(ClusterSpec("none", ("h:1",))), deliver, ByteBudget(1 << 24)
        )

    def part(self, number: int, *, has_data: bool = True, job: str = "job") -> PartitionFetch:
        key = FetchKey(f"{job}/{number}", 1)
        self.service.add(key, "orders", number, 0)
        found = self.service._partitions[key]
        found.node, found.polling, found.idle = NODE, True, not has_data
        return found

    def again(
        self, connection: int, parts: Iterable[PartitionFetch], took_s: float = 0.0
    ) -> list[PartitionFetch]:
        self.service._wake.clear()
        return self.service._again(NODE, connection, [*parts], time.monotonic() - took_s)

    @property
    def broker(self) -> BrokerConnections:
        return self.service._brokers[NODE]

    @property
    def looks(self) -> bool:
        """Whether the service looks at once for partitions to fetch."""
        return self.service._wake.is_set()


async def test_partitions_are_fetched_again_over_their_connection_those_with_data_last() -> None:
    rig = Rig()
    first, second, third = rig.part(0), rig.part(1, has_data=False), rig.part(2)
    assert rig.again(OTHER, [first, second, third]) == [second, first, third]
    assert not rig.looks
    assert all(part.polling for part in (first, second, third))


@pytest.mark.parametrize(
    "change",
    [
        {"removed": True}, {"unsure": True}, {"node": None}, {"node": NODE + 1}, {"counts": len},
        {"retry_at_s": float("inf")}, {"unreleased_bytes": PARTITION_BUFFER_BYTES},
    ],
)  # fmt: skip
async def test_partition_that_is_not_ready_is_left_to_the_service(change: dict[str, Any]) -> None:
    rig = Rig()
    stays, leaves = rig.part(0), rig.part(1)
    for name, value in change.items():
        setattr(leaves, name, value)
    assert rig.again(FIRST, [stays, leaves]) == [stays]
    assert (stays.polling, leaves.polling, rig.looks) == (True, False, True)


async def test_nothing_stays_on_the_last_connection_or_at_a_broker_where_others_wait() -> None:
    rig = Rig()
    part = rig.part(0)
    assert rig.again(LAST, [part]) == []
    assert (part.polling, rig.looks) == (False, True)
    part.polling = True
    rig.broker.is_crowded = True
    assert rig.again(FIRST, [part]) == []
    assert (part.polling, rig.looks) == (False, True)


async def test_partition_without_data_waits_for_the_last_connection() -> None:
    rig = Rig()
    taken = [rig.broker.take(), rig.broker.take(), rig.broker.take()]
    assert (taken, rig.broker.take(), rig.broker.is_crowded) == ([FIRST, OTHER, LAST], None, True)
    rig.broker.is_crowded = False
    quiet, busy = rig.part(0, has_data=False), rig.part(1)
    assert rig.again(FIRST, [quiet, busy]) == [busy]
    rig.broker.give_back(LAST)
    quiet.polling = True
    assert rig.again(FIRST, [quiet, busy]) == [quiet, busy]


async def test_partitions_join_the_first_connection_while_it_flows() -> None:
    rig = Rig()
    first, other, last = rig.part(0), rig.part(1), rig.part(2)
    assert rig.again(FIRST, [first]) == [first]
    assert rig.again(OTHER, [other]) == []
    assert not other.polling
    assert rig.looks, "the connection is free, and the wait is bounded"
    assert time.monotonic() < other.retry_at_s <= time.monotonic() + JOIN_S
    assert rig.again(FIRST, [first]) == [first, other]
    assert other.polling
    assert rig.again(LAST, [last]) == []
    assert rig.again(FIRST, [first, other]) == [first, other], "the last connection's are for the service"
    assert rig.again(OTHER, [other]) == [other], "the first connection requests it already"


async def test_partition_that_was_not_joined_in_time_is_fetched_once() -> None:
    rig = Rig()
    first, other = rig.part(0), rig.part(1)
    rig.again(FIRST, [first])
    rig.again(OTHER, [other])
    other.polling = True  # the service has begun to fetch it
    assert rig.again(FIRST, [first]) == [first]
    assert rig.again(FIRST, [first]) == [first]


@pytest.mark.parametrize(
    "change", [{"node": None}, {"retry_at_s": 1e12}, {"removed": True}, {"polling": True}]
)
async def test_partition_to_which_something_happened_does_not_join(change: dict[str, Any]) -> None:
    rig = Rig()
    first, other = rig.part(0), rig.part(1)
    rig.again(FIRST, [first])
    rig.again(OTHER, [other])
    until_s = other.retry_at_s
    for name, value in change.items():
        setattr(other, name, value)
    assert rig.again(FIRST, [first]) == [first]
    assert other.retry_at_s == change.get("retry_at_s", 0.0 if "polling" not in change else until_s)
    assert other.polling == change.get("polling", False)


@pytest.mark.parametrize("why", ["quiet", "slow", "late", "ended"])
async def test_nothing_waits_for_a_first_connection_that_does_not_flow(why: str) -> None:
    rig = Rig()
    first, other = rig.part(0, has_data=why != "quiet"), rig.part(1)
    rig.again(FIRST, [first], took_s=JOIN_S if why == "slow" else 0.0)
    if why == "late":
        assert rig.broker._flowing is not None
        since_s, names = rig.broker._flowing
        rig.broker._flowing = since_s - JOIN_S, names
    if why == "ended":
        first.removed = True
        rig.again(FIRST, [first])
    assert rig.again(OTHER, [other]) == [other]
    assert other.retry_at_s == 0.0


async def test_groups_of_one_partition_keep_their_own_connections() -> None:
    rig = Rig()
    one, two = rig.part(0, job="one"), rig.part(0, job="two")
    assert rig.again(FIRST, [one]) == [one]
    assert rig.again(OTHER, [two]) == [two]
    # Two that wait to join may be of one partition, too.
    third = rig.part(1, job="one")
    fourth = rig.part(1, job="two")
    assert rig.again(OTHER, [third]) == rig.again(OTHER, [fourth]) == []
    assert rig.again(FIRST, [one]) == [one, third]
    assert (third.polling, fourth.polling, rig.looks) == (True, False, True)


async def test_freed_bytes_start_a_look_only_if_a_partition_waits_for_them() -> None:
    rig = Rig()
    await rig.service.on_start()
    part = rig.part(0)
    assert rig.again(FIRST, [part]) == [part]
    rig.service.budget.give_back(1)
    assert not rig.looks
    part.unreleased_bytes = PARTITION_BUFFER_BYTES
    assert rig.again(FIRST, [part]) == []
    rig.service._wake.clear()
    rig.service.budget.give_back(1)
    assert rig.looks


async def test_partitions_that_began_apart_are_requested_together_while_messages_flow(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = range(4)
    await create(client, topic_name, len(partitions))
    connections: dict[int, set[str | int]] = {}
    together = asyncio.Event()
    send = client.send

    async def noted(node: int, request: Any, group: str | int = 0) -> Any:
        if isinstance(request, Fetch):
            wanted = {one.partition for one in request._wanted}
            for partition in wanted:
                connections.setdefault(partition, set()).add(group)
            if wanted == {*partitions}:
                together.set()
        return await send(node, request, group)

    monkeypatch.setattr(client, "send", noted)
    pump = await start()
    for partition in partitions:
        pump.service.add(partition, topic_name, partition, 0)
        async with asyncio.timeout(ENOUGH_S):
            while partition not in connections:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.001)
    assert len(set.union(*connections.values())) > 1, "they began apart"
    count = 0
    async with producing(bootstrap, linger_ms=0) as producer, asyncio.timeout(ENOUGH_S):
        while not together.is_set():
            for partition in partitions:
                await producer.send_and_wait(topic_name, b"%d" % count, partition=partition)
            count += 1
    await pump.until(lambda: all(pump.count(partition) == count for partition in partitions))
    for partition in partitions:
        assert pump.offsets(partition) == [*range(count)]
