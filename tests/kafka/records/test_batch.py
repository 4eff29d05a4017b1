"""Batch headers are read as written, damage is reported, and read_committed hides exactly what it must."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kafka.records.batch import (
    HEADER_BYTES,
    MAX_BATCH_BYTES,
    CorruptBatch,
    ReadCommittedFilter,
    RecordBatch,
    iter_batches,
)
from tests.kafka.records.batches import (
    CODECS,
    LAST_DELTA_AT,
    LENGTH_AT,
    MAGIC_AT,
    make_batch,
    make_marker,
    patched,
)

record = st.tuples(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=60))
records = st.lists(record, min_size=1, max_size=8)
plans = st.lists(st.tuples(records, st.sampled_from(sorted(CODECS)), st.integers(0, 3)), max_size=6)


def build(plan: list[Any], first: int = 0) -> list[bytes]:
    """Batches one after the other, with holes in front of some as compaction leaves them."""
    made, offset = [], first
    for rows, codec, hole in plan:
        offset += hole
        made.append(make_batch(offset, rows, codec=CODECS[codec]))
        offset += len(rows)
    return made


@given(plans, st.integers(0, 2**62))
def test_every_batch_is_found_with_its_offsets_count_and_codec(plan: list[Any], first: int) -> None:
    raw = build(plan, first)

    found = list(iter_batches(b"".join(raw)))

    assert [bytes(batch.data) for batch in found] == raw
    offset = first
    for (rows, codec, hole), batch in zip(plan, found, strict=True):
        offset += hole
        assert batch.header.base_offset == offset
        assert batch.header.record_count == len(rows)
        assert batch.header.compression == CODECS[codec]
        assert (batch.header.is_transactional, batch.header.is_control) == (False, False)
        offset += len(rows)
        assert batch.header.next_offset == offset


@given(plans, st.data())
def test_truncated_tail_is_left_out_wherever_it_is_cut(plan: list[Any], data: st.DataObject) -> None:
    raw = build(plan)
    whole = b"".join(raw)
    cut = data.draw(st.integers(0, len(whole)))

    found = list(iter_batches(memoryview(whole)[:cut]))

    ends = list(accumulate(map(len, raw)))
    assert [bytes(batch.data) for batch in found] == raw[: sum(end <= cut for end in ends)]


def test_compacted_batch_still_ends_at_its_old_offset() -> None:
    compacted = patched(make_batch(100, [(b"k", b"v")] * 2), LAST_DELTA_AT, ">i", 9)

    (batch,) = iter_batches(compacted)

    assert (batch.header.record_count, batch.header.next_offset) == (2, 110)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48, MAX_BATCH_BYTES + 1, 2**31 - 1])
def test_impossible_length_raises_and_never_loops(length: int) -> None:
    good = make_batch(0)
    found = iter_batches(good + patched(good, LENGTH_AT, ">i", length) + good)

    assert next(found).header.base_offset == 0
    with pytest.raises(CorruptBatch, match=f"length {length} at byte {len(good)}"):
        list(found)


@pytest.mark.parametrize("magic", [3, -1])
def test_unknown_format_is_reported_with_its_position(magic: int) -> None:
    with pytest.raises(CorruptBatch, match=rf"magic {magic};.* \(at byte 0\)"):
        list(iter_batches(patched(make_batch(0), MAGIC_AT, ">b", magic)))


def test_batch_that_would_end_before_it_begins_is_refused() -> None:
    with pytest.raises(CorruptBatch):
        list(iter_batches(patched(make_batch(0), LAST_DELTA_AT, ">i", -1)))


@given(st.binary(max_size=4 * HEADER_BYTES), st.booleans())
def test_garbage_ends_or_raises_within_the_buffer(garbage: bytes, as_batch: bool) -> None:
    if as_batch and len(garbage) > MAGIC_AT:  # past the first check, to reach the others
        garbage = patched(garbage, MAGIC_AT, ">b", 2)
    taken = 0
    try:
        for batch in iter_batches(garbage):
            taken += len(batch.data)
            assert batch.header.next_offset > batch.header.base_offset
    except CorruptBatch:
        pass
    assert taken <= len(garbage)


# -- read_committed --------------------------------------------------------------------------------

WRITE, PLAIN, COMMIT, ABORT = "write", "plain", "commit", "abort"
steps = st.lists(
    st.tuples(st.sampled_from([WRITE, WRITE, PLAIN, COMMIT, ABORT]), st.integers(1, 3)), max_size=30
)


def write_log(story: list[tuple[str, int]]) -> tuple[list[bytes], set[int], list[tuple[int, int, int]]]:
    """A log of transactional producers: batches, visible base offsets, aborted (id, first, marker)."""
    log: list[bytes] = []
    open_at: dict[int, list[int]] = {}
    seen: set[int] = set()
    aborted: list[tuple[int, int, int]] = []
    story = story + [(COMMIT, producer) for producer in (1, 2, 3)]  # nothing beyond the last stable offset
    for offset, (step, producer) in enumerate(story):
        if step == PLAIN:
            log.append(make_batch(offset, producer_id=producer + 10))
            seen.add(offset)
        elif step == WRITE:
            log.append(make_batch(offset, producer_id=producer, transactional=True))
            open_at.setdefault(producer, []).append(offset)
        else:
            log.append(make_marker(offset, producer))
            mine = open_at.pop(producer, [])
            if step == COMMIT:
                seen.update(mine)
            elif mine:
                aborted.append((producer, mine[0], offset))
    return log, seen, aborted


@given(steps, st.data())
def test_read_committed_shows_exactly_the_committed_records(
    story: list[tuple[str, int]], data: st.DataObject
) -> None:
    log, seen, aborted = write_log(story)
    start, end = sorted((data.draw(st.integers(0, len(log))), data.draw(st.integers(0, len(log)))))
    overlapping = [
        (producer, first) for producer, first, marker in aborted if marker >= start and first < end
    ]
    committed = ReadCommittedFilter(data.draw(st.permutations(overlapping)))

    batches: list[RecordBatch] = list(iter_batches(b"".join(log[start:end])))
    shown = {batch.header.base_offset for batch in batches if committed.shows(batch)}

    assert shown == {offset for offset in seen if start <= offset < end}


def test_control_batches_are_never_shown() -> None:
    (marker,) = iter_batches(make_marker(0, 1))

    assert marker.header.is_control
    assert not ReadCommittedFilter([]).shows(marker)
