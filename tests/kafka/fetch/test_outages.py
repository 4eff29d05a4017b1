"""Brokers are stopped, killed or paused during fetches: every record comes once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from app.dev.yard import Yard
from app.kafka.client import cluster
from app.kafka.client.cluster import ClusterClient, ClusterSpec, ClusterUnreachable
from app.kafka.fetch.deliveries import FetchIncident
from tests.kafka.conftest import ENOUGH_S, connected, create, producing, pumping

CLUSTER = "east-aggregate"  # not the one other tests use at the same time
PARTITIONS = 4
TOTAL = 4_000

OUTAGES: dict[str, Callable[[Yard], None]] = {
    "stopped": lambda yard: yard.stop(CLUSTER),
    "killed with -9": lambda yard: yard.kill(CLUSTER),
}


@pytest.mark.deep(minutes=0.2)
@pytest.mark.parametrize("outage", OUTAGES)
async def test_records_of_a_stopped_broker_come_once_and_in_order_when_it_is_back(
    killable_yard: Yard, topic_name: str, outage: str
) -> None:
    bootstrap = killable_yard.bootstrap(CLUSTER)
    async with (
        connected(bootstrap) as client,
        pumping(client) as pump,
        producing(bootstrap, enable_idempotence=True, max_batch_size=2000) as producer,
    ):
        await create(client, topic_name, PARTITIONS)
        for partition in range(PARTITIONS):
            pump.service.add(partition, topic_name, partition, 0)

        async def write(first: int, end: int) -> None:
            sent = [
                await producer.send(topic_name, str(number).encode(), partition=number % PARTITIONS)
                for number in range(first, end)
            ]
            await asyncio.gather(*sent)

        await write(0, TOTAL // 2)
        writing = asyncio.create_task(write(TOTAL // 2, TOTAL))
        await pump.until(lambda: pump.count(0) > TOTAL // 2 // PARTITIONS)
        await asyncio.to_thread(OUTAGES[outage], killable_yard)
        await asyncio.to_thread(killable_yard.start, CLUSTER)
        async with asyncio.timeout(ENOUGH_S):
            await writing
        await pump.until(lambda: sum(map(len, pump.records.values())) >= TOTAL)
        await asyncio.sleep(0.3)  # for what might come twice

        for partition in range(PARTITIONS):
            expected = list(range(partition, TOTAL, PARTITIONS))
            assert [int(value or b"") for value in pump.values(partition)] == expected
        assert not [item for item in pump.reports if not isinstance(item, FetchIncident)]
        assert pump.budget.used_bytes == 0


async def test_unreachable_cluster_is_reported_with_a_remedy_and_flows_again_without_a_restart(
    killable_yard: Yard, topic_name: str
) -> None:
    async with connected(killable_yard.bootstrap(CLUSTER)) as client, pumping(client) as pump:
        await create(client, topic_name)
        pump.service.add("k", topic_name, 0, 0)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(killable_yard.kill, CLUSTER)
        await pump.until(lambda: pump.reports)
        (trouble,) = pump.reports
        assert isinstance(trouble, FetchIncident)
        assert (trouble.key, trouble.topic) == ("k", topic_name)
        assert "broker" in trouble.remedy

        await asyncio.to_thread(killable_yard.start, CLUSTER)
        async with producing(killable_yard.bootstrap(CLUSTER)) as producer:
            await producer.send_and_wait(topic_name, b"back", partition=0)
        await pump.until(lambda: pump.count("k"))
        assert pump.values("k") == [b"back"]


async def test_silent_cluster_is_reported_with_its_name_address_and_remedy() -> None:
    client = ClusterClient(ClusterSpec("nowhere", ("127.0.0.1:1",)))

    with pytest.raises(ClusterUnreachable, match=r"nowhere at 127\.0\.0\.1:1 does not answer.*check that it"):
        await client.start(timeout_s=0.5)
    await client.stop()


async def test_waiting_for_a_cluster_is_logged_repeatedly_and_never_given_up(
    monkeypatch: pytest.MonkeyPatch, yard: Yard
) -> None:
    for name, seconds in (
        ("CLUSTER_RETRY_INTERVAL_S", 0.01),
        ("WAITING_LOG_INTERVAL_S", 0.02),
        ("CONNECT_TIMEOUT_S", 0.0),
    ):
        monkeypatch.setattr(cluster, name, seconds)
    client = ClusterClient(ClusterSpec("early", ("127.0.0.1:1", "no-such-host.invalid:9092")))
    with capture_logs() as logs:
        starting = asyncio.create_task(client.start_patiently())
        async with asyncio.timeout(ENOUGH_S):
            while len(logs) < 3:
                assert not starting.done()
                await asyncio.sleep(0.02)
    for part in ("nothing listens at 127.0.0.1:1", "no-such-host.invalid does not resolve", "bootstrap and"):
        assert part in logs[-1]["why"]
    client.spec = ClusterSpec("early", (yard.bootstrap(CLUSTER),))  # it is there now
    async with asyncio.timeout(ENOUGH_S):
        await starting
    await client.stop()
