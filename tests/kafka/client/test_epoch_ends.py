"""Fetches and leader epochs. tests/replicate/pump/test_truncation.py covers truncated logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from app.kafka.client.cluster import ClusterClient
from app.kafka.client.epoch_ends import FENCED_EPOCH, NOT_KNOWN, UNKNOWN_EPOCH, EpochEnd, epoch_ends
from app.kafka.fetch.deliveries import CORRUPT, LogGap, PartitionFetch, name_of
from app.kafka.fetch.service import FetchService
from tests.kafka.conftest import ENOUGH_S, Start, create, write


async def test_fetch_names_the_leader_epoch_and_continues_when_the_leader_does_not_know_it(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(client, topic_name)
    await write(bootstrap, topic_name, [b"v"] * 10)
    refused: list[tuple[int, int]] = []
    taken = FetchService._refused

    async def refusing(self: FetchService, part: PartitionFetch, code: int) -> None:
        refused.append((code, part.epoch))
        await taken(self, part, code)

    monkeypatch.setattr(FetchService, "_refused", refusing)
    await client.topic_ids([topic_name])
    epoch = client.leader_epoch(topic_name, 0)
    assert epoch >= 0
    pump = await start()
    pump.service.add("k", topic_name, 0, 0)
    await pump.until(lambda: pump.count("k") == 10)
    part = pump.service._partitions["k"]
    assert (part.epoch, part.last_epoch, refused) == (epoch, epoch, [])
    part.epoch = epoch + 5  # of a topic of this name that was there before, say
    async with asyncio.timeout(ENOUGH_S):
        while not refused:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.02)
    assert refused[0] == (UNKNOWN_EPOCH, epoch + 5)
    await write(bootstrap, topic_name, [b"v"])
    await pump.until(lambda: pump.count("k") == 11)
    assert pump.offsets("k") == list(range(11))
    assert not pump.reports


async def test_leader_reports_epoch_ends_and_later_positions_are_of_another_log(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    await write(bootstrap, topic_name, [b"v"] * 10)
    node = await client.leader(topic_name, 0)
    assert node is not None
    at = (topic_name, 0)
    end = (await epoch_ends(client, node, {at: (NOT_KNOWN, 0)}))[at]
    assert end == EpochEnd(0, 0, 10)
    assert not end.diverges_at(10)
    assert end.diverges_at(11)
    assert not EpochEnd(0, NOT_KNOWN, NOT_KNOWN).diverges_at(11), "the end is unknown"
    pump = await start()
    pump.service.add("k", topic_name, 0, 4, last_epoch=0)
    await pump.until(lambda: pump.offsets("k") == list(range(4, 10)))
    assert not pump.reports


async def settled(condition: Callable[[], bool]) -> None:
    """Waits for a condition without an event."""
    async with asyncio.timeout(ENOUGH_S):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


async def test_reader_at_the_log_end_knows_its_epoch_before_the_first_record(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    await write(bootstrap, topic_name, [b"v"] * 10)
    await client.topic_ids([topic_name])
    epoch = client.leader_epoch(topic_name, 0)
    pump = await start()
    pump.service.add("k", topic_name, 0, 10)
    part = pump.service._partitions["k"]
    assert (part.unsure, part.last_epoch) == (True, NOT_KNOWN)
    await settled(lambda: part.high_watermark == 10)
    assert (part.unsure, part.last_epoch, pump.offsets("k"), pump.reports) == (False, epoch, [], [])


async def test_answer_of_a_former_leader_is_dropped_until_the_logs_are_compared(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next leader has cut the log off below the position."""
    await create(client, topic_name)
    await write(bootstrap, topic_name, [b"v"] * 10)
    await client.topic_ids([topic_name])
    epoch = client.leader_epoch(topic_name, 0)
    requests: list[tuple[int, int]] = []

    async def ends(_: ClusterClient, __: int, wanted: Any) -> dict[tuple[str, int], EpochEnd]:
        (wanted_epochs,) = wanted.values()
        requests.append(wanted_epochs)
        return {(topic_name, 0): EpochEnd(0, epoch, 10 if len(requests) == 1 else 7)}

    monkeypatch.setattr("app.kafka.fetch.service.epoch_ends", ends)
    pump = await start()
    pump.service.add("k", topic_name, 0, 10)
    part = pump.service._partitions["k"]
    await settled(lambda: part.high_watermark == 10 and part.polling)
    part.unsure = True  # as the watch does when another leader is elected meanwhile
    await write(bootstrap, topic_name, [b"other"])
    await pump.until(lambda: bool(pump.reports))
    (gap,) = pump.reports
    assert isinstance(gap, LogGap)
    assert (gap.start, gap.end, gap.is_truncation) == (10, 7, True)
    await pump.until(lambda: pump.offsets("k") == [7, 8, 9, 10])
    assert requests == [(epoch, epoch)] * 2


def test_truncated_log_is_continued_without_skipping_unfinished_offsets() -> None:
    cut_off = LogGap("k", "t", 0, 100, 60, "", begun_anew=True, truncated_in=7)
    assert (cut_off.resume_offset(40), cut_off.resume_offset(90)) == (40, 60)
    recreated = LogGap("k", "t", 0, 100, 60, "", begun_anew=True)
    assert recreated.resume_offset(40) == 60


def test_epoch_errors_have_names() -> None:
    names = [name_of(code) for code in (FENCED_EPOCH, UNKNOWN_EPOCH, CORRUPT)]
    assert names == ["FencedLeaderEpoch", "UnknownLeaderEpoch", "CorruptRecordException"]
