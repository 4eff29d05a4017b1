"""Fetches and leader epochs. What a truncation looks like: tests/replicate/pump/test_truncation.py."""

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


async def test_a_fetch_names_the_leaders_epoch_and_goes_on_when_the_leader_does_not_know_it(
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
    assert not pump.told


async def test_where_an_epoch_ends_is_told_by_the_leader_and_a_position_behind_it_is_another_logs(
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
    assert not EpochEnd(0, NOT_KNOWN, NOT_KNOWN).diverges_at(11), "nobody knows"
    pump = await start()
    pump.service.add("k", topic_name, 0, 4, last_epoch=0)
    await pump.until(lambda: pump.offsets("k") == list(range(4, 10)))
    assert not pump.told


async def settled(condition: Callable[[], bool]) -> None:
    """Of what nobody is told."""
    async with asyncio.timeout(ENOUGH_S):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


async def test_who_waits_at_a_logs_end_knows_its_epoch_before_the_first_record_comes(
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
    assert (part.unsure, part.last_epoch, pump.offsets("k"), pump.told) == (False, epoch, [], [])


async def test_what_was_asked_of_a_former_leader_is_not_taken_before_the_logs_are_compared(
    client: ClusterClient, start: Start, bootstrap: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one has cut the log off below the position."""
    await create(client, topic_name)
    await write(bootstrap, topic_name, [b"v"] * 10)
    await client.topic_ids([topic_name])
    epoch = client.leader_epoch(topic_name, 0)
    asked: list[tuple[int, int]] = []

    async def ends(_: ClusterClient, __: int, wanted: Any) -> dict[tuple[str, int], EpochEnd]:
        (asked_for,) = wanted.values()
        asked.append(asked_for)
        return {(topic_name, 0): EpochEnd(0, epoch, 10 if len(asked) == 1 else 7)}

    monkeypatch.setattr("app.kafka.fetch.service.epoch_ends", ends)
    pump = await start()
    pump.service.add("k", topic_name, 0, 10)
    part = pump.service._partitions["k"]
    await settled(lambda: part.high_watermark == 10 and part.polling)
    part.unsure = True  # as the watch does, which hears of another leader while this one is asked
    await write(bootstrap, topic_name, [b"other"])
    await pump.until(lambda: bool(pump.told))
    (gap,) = pump.told
    assert isinstance(gap, LogGap)
    assert (gap.start, gap.end, gap.is_truncation) == (10, 7, True)
    await pump.until(lambda: pump.offsets("k") == [7, 8, 9, 10])
    assert asked == [(epoch, epoch)] * 2


def test_who_goes_on_in_a_log_that_was_cut_off_passes_over_nothing_that_is_not_finished() -> None:
    cut_off = LogGap("k", "t", 0, 100, 60, "", begun_anew=True, truncated_in=7)
    assert (cut_off.resume_offset(40), cut_off.resume_offset(90)) == (40, 60)
    made_anew = LogGap("k", "t", 0, 100, 60, "", begun_anew=True)
    assert made_anew.resume_offset(40) == 60


def test_what_a_leader_refuses_by_epoch_has_its_name() -> None:
    names = [name_of(code) for code in (FENCED_EPOCH, UNKNOWN_EPOCH, CORRUPT)]
    assert names == ["FencedLeaderEpoch", "UnknownLeaderEpoch", "CorruptRecordException"]
