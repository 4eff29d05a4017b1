"""A worker writes an incident once, and its end once it is over; every worker reads both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from app.controllog.codec import IncidentRecord
from app.controllog.incident_log import is_open
from app.kafka.client.cluster import ClusterClient
from app.kernel.incidents import JOB_CLOSED
from app.worker.runtime import incidents
from app.worker.runtime.incidents import WORKER_STOPPED, Incidents
from tests.kafka.append.test_appender import until
from tests.kafka.conftest import connected, create

ME, READER = "w-1", "w-2"


@asynccontextmanager
async def running(client: ClusterClient, topic: str, worker: str) -> AsyncIterator[Incidents]:
    service = Incidents(worker, topic, client.spec.aiokafka_options())
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


@pytest.fixture
async def client(bootstrap: str) -> AsyncIterator[ClusterClient]:
    async with connected(bootstrap) as made:
        yield made


@pytest.fixture
async def topic(client: ClusterClient, topic_name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(incidents, "CHECK_INTERVAL_S", 0.05)
    await create(client, topic_name)
    return topic_name


def shown(service: Incidents) -> list[IncidentRecord]:
    return service.known.newest_first({ME, READER})


async def until_shown(
    service: Incidents, is_right: Callable[[list[IncidentRecord]], bool]
) -> list[IncidentRecord]:
    await until(lambda: is_right(shown(service)))
    return shown(service)


async def test_every_worker_sees_an_incident_open_and_then_its_end(client: ClusterClient, topic: str) -> None:
    over = [False]
    async with running(client, topic, ME) as reporter, running(client, topic, READER) as reader:
        for _ in range(3):
            reporter.report("fetch-trouble", "orders", "a broker is away", "start it", lambda: over[0])
        reporter.report("offsets-lost", "orders", "they are gone", "look")
        first, moment = await until_shown(reader, lambda found: len(found) == 2)
        assert (first.kind, is_open(first)) == ("fetch-trouble", True)
        assert (moment.kind, moment.lasts) == ("offsets-lost", False)
        over[0] = True
        found = await until_shown(reader, lambda found: not any(map(is_open, found)))
        (ended,) = (one for one in found if one != moment)
        assert (ended.at_ms, ended.message, ended.remedy) == (first.at_ms, "a broker is away", "start it")
        assert (ended.ended_ms >= first.at_ms, ended.ended_why) == (True, "")

        over[0] = False
        reporter.report("fetch-trouble", "orders", "a broker is away", "start it", lambda: over[0])
        again, *_ = await until_shown(reader, lambda found: len(found) == 3)
        assert is_open(again), "the same problem at a later time"
    async with running(client, topic, READER) as late:
        await until(lambda: len(shown(late)) == 3)
    end = await client.end_offsets([(topic, 0)])
    assert end == {(topic, 0): 5}, "three reports, and two ends"


async def test_a_worker_that_stops_ends_its_open_incidents_and_says_why(
    client: ClusterClient, topic: str
) -> None:
    over = [False]
    async with running(client, topic, READER) as reader:
        async with running(client, topic, ME) as reporter:
            reporter.report("fetch-trouble", "moved", "a broker is away", "start it", lambda: over[0])
            reporter.report("clock", ME, "it is wrong", "set it", lambda: False)
            await until(lambda: len(shown(reader)) == 2)
            reporter._check = lambda: None  # type: ignore[method-assign] # it stops before it looks again
            over[0] = True
        found = await until_shown(reader, lambda found: not any(map(is_open, found)))
        assert {one.subject: one.ended_why for one in found} == {"moved": "", ME: WORKER_STOPPED}


async def test_a_predicate_that_fails_ends_nothing_and_holds_up_no_other(
    client: ClusterClient, topic: str
) -> None:
    def broken() -> bool:
        raise ArithmeticError("of no kind that anybody thought of")

    async with running(client, topic, ME) as reporter:
        reporter.report("fetch-trouble", "broken", "a broker is away", "start it", broken)
        reporter.report("fetch-trouble", "over", "a broker is away", "start it", lambda: True)
        reporter.report("fetch-trouble", "moved", "a broker is away", "start it", lambda: JOB_CLOSED)
        found = await until_shown(reporter, lambda found: sum(one.ended_ms > 0 for one in found) == 2)
        assert {one.subject: (is_open(one), one.ended_why) for one in found} == {
            "broken": (True, ""), "over": (False, ""), "moved": (False, JOB_CLOSED),
        }  # fmt: skip


async def test_open_incidents_are_bounded_and_all_of_them_end(
    client: ClusterClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incidents, "MAX_OPEN", 5)
    monkeypatch.setattr(incidents, "CHECKED_AT_ONCE", 2)
    over = [False]
    async with running(client, topic, ME) as reporter:
        for number in range(7):
            reporter.report("fetch-trouble", f"orders-{number}", "away", "start it", lambda: over[0])
        found = await until_shown(reporter, lambda found: len(found) == 7)
        assert [one.lasts for one in sorted(found, key=lambda one: one.subject)] == [True] * 5 + [False] * 2
        over[0] = True
        found = await until_shown(reporter, lambda found: not any(map(is_open, found)))
        assert sum(one.ended_ms > 0 for one in found) == 5


async def test_what_no_broker_took_is_written_later(
    client: ClusterClient, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incidents, "CHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr(incidents, "INCIDENT_TIMEOUT_S", 0.5)
    over = [False]
    async with running(client, topic_name, ME) as reporter:
        reporter.report("fetch-trouble", "orders", "a broker is away", "start it", lambda: over[0])
        await until(lambda: reporter._unwritten)
        over[0] = True
        await until(lambda: not reporter._open)
        await asyncio.sleep(0.2)
        await create(client, topic_name)
        (one,) = await until_shown(reporter, lambda found: bool(found) and bool(found[0].ended_ms))
        assert (one.subject, is_open(one)) == ("orders", False)
