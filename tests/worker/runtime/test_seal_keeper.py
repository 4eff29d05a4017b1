"""Seals start when all workers write them, and records without one are reported."""

from __future__ import annotations

import time
from typing import Any

import pytest

from app.controllog.codec import Heartbeat
from app.controllog.seals import VERSION, Seals
from app.controllog.topics import ControlTopics
from app.kafka.client.cluster import ClusterClient
from app.kernel.clock import now_ms
from app.worker.members.membership import STOPPED, Members
from app.worker.runtime.seal_keeper import FORMER_S, REPORT_AFTER_S, SealKeeper
from tests.controllog.test_seals import record_at, region, started_seals, until


class Keeper:
    """A keeper, workers of two versions, and a clock by hand."""

    def __init__(self, seals: Seals, client: ClusterClient, topics: ControlTopics) -> None:
        self.reported: list[tuple[str, ...]] = []
        self.members, self.leads = Members(3.0), True
        self.made = SealKeeper(
            seals,
            client,
            "new",
            self.members,
            lambda: self.leads,
            lambda *reported: self.reported.append(reported[:4]),
            topics,
        )

    def hear(self, worker: str, now_s: float, **fields: Any) -> None:
        reported = {"state": "running", **fields}
        beat = Heartbeat(worker=worker, at_ms=now_ms(), started_ms=0, url="", term=0, **reported)
        self.members.observe(beat, now_s)


async def test_seals_begin_once_no_worker_of_an_earlier_version_lives(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        region(bootstrap, monkeypatch) as (client, topics, options),
        started_seals(topics, options, client) as seals,
    ):
        keeper, start_s = Keeper(seals, client, topics), time.monotonic()
        for second in range(int(REPORT_AFTER_S) + 10):
            keeper.hear("new", start_s + second, seals=VERSION)
            keeper.hear("old", start_s + second)
            await keeper.made._begin(start_s + second)
        assert [kind for kind, *_ in keeper.reported] == ["seals-wait"]
        assert "among them old" in keeper.reported[0][2]
        keeper.hear("new", start_s + REPORT_AFTER_S + 10, seals=VERSION)
        keeper.hear("old", start_s + REPORT_AFTER_S + 10, state=STOPPED)
        await keeper.made._begin(start_s + REPORT_AFTER_S + FORMER_S)
        assert await client.end_offsets([(topics.seals.name, 0)]) == {(topics.seals.name, 0): 0}
        later_s = start_s + REPORT_AFTER_S + 10 + FORMER_S
        keeper.hear("new", later_s, seals=VERSION)
        keeper.leads = False
        await keeper.made._begin(later_s)
        keeper.leads = True
        await keeper.made._begin(later_s)
        assert not seals.begins, "a new leader may not have heard all workers yet"
        keeper.hear("new", later_s + 4, seals=VERSION)
        await keeper.made._begin(later_s + 4)
        await until(lambda: not seals.missing)


async def test_only_the_leader_reports_topics_that_all_workers_read(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        region(bootstrap, monkeypatch) as (client, topics, options),
        started_seals(topics, options, client) as seals,
    ):
        keeper = Keeper(seals, client, topics)
        seals.begins |= {(topic.name, 0): 0 for topic in topics.sealed}
        for leads in (False, True):
            keeper.leads = leads
            for topic in (topics.heartbeats, topics.trackers):
                assert seals.refuses(record_at(topic.name, 5))
            keeper.made.report(0.0)
        assert [subject for _, subject, *_ in keeper.reported] == [
            topics.trackers.name,
            topics.heartbeats.name,
        ]
        assert "1 records without a worker's seal" in keeper.reported[0][2]
