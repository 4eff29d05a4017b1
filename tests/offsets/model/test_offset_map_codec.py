"""Offset syncs and lines as records: all arrive, stay small, and are read back unchanged."""

from __future__ import annotations

import pytest

from app.controllog import codec
from app.kafka.records.producer_sequences import ProducerStamp
from app.kernel.fencing import LogId
from app.offsets.model.offset_map import (
    MAX_BARRIERS,
    MAX_NEEDS,
    Barrier,
    NeedItem,
    OffsetMapLine,
    after,
    line_key,
    needs_of,
)
from tests.offsets.model.test_offset_map import FULL, item


def test_offset_syncs_of_many_lines_are_split_and_all_arrive() -> None:
    many = [item(*((n, n) for n in range(300))) for _ in range(600)]
    events = codec.barriers_events("w", 7, many)
    assert len(events) > 1
    assert max(map(len, events)) <= codec.MAX_EVENT_BYTES
    assert [one for event in events for one in codec.checkpoint_event(event).items] == many


def test_pinned_offsets_of_many_lines_are_split_and_all_arrive() -> None:
    needs = needs_of(range(10**12, 10**12 + 500), [3])
    assert len(needs.read) == MAX_NEEDS
    many = [NeedItem("r", "t", partition, LogId("c", "u"), needs) for partition in range(1_500)]
    events = codec.needed_events("w", 7, many)
    assert len(events) > 1
    assert max(map(len, events)) <= codec.MAX_EVENT_BYTES
    assert [one for event in events for one in codec.checkpoint_event(event).items] == many


def test_a_line_full_of_stamps_keeps_them_and_stays_small() -> None:
    grown: OffsetMapLine | None = None
    for number in range(3 * MAX_BARRIERS):
        stamp = ProducerStamp(4_000_000 + number // 900, 16, 2**31 - 1 - number)
        source_end = 10**12 + 1_000 * (number - number % 5)
        event = item()
        event.barriers.append(Barrier(source_end, 10**12 + 2_000 * number, 1_700_000_000_000, stamp))
        grown = after(grown, event) or grown
    assert grown is not None
    for barrier in grown.barriers:
        number = (barrier.target_end - 10**12) // 2_000
        assert barrier.stamp == ProducerStamp(4_000_000 + number // 900, 16, 2**31 - 1 - number)
    encoded = codec.encode(grown)
    assert len(encoded) < 40_000
    assert codec.checkpoint_line(encoded) == grown
    assert codec.checkpoint_line(codec.encode(FULL)).barriers == [Barrier(0, 0), Barrier(10, 10)]


def test_offset_syncs_without_stamps_are_read() -> None:
    old = codec.encode(FULL).replace(b",null]", b"]").replace(b',"ended":null', b"")
    assert b"null" not in old
    assert codec.checkpoint_line(old) == FULL


def test_a_line_round_trips_and_other_bytes_are_refused() -> None:
    assert codec.checkpoint_line(codec.encode(FULL)) == FULL
    for broken in (None, b"", b"{}", b"\xff", b"[1]", codec.encode(item((1, 1)))):
        with pytest.raises(codec.BadEvent):
            codec.checkpoint_line(broken)
        with pytest.raises(codec.BadEvent):
            codec.checkpoint_event(broken)
    assert item((1, 1)).key == line_key("r", "t", 0) == "r/t/0"
