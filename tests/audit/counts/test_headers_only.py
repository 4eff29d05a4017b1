"""A reader that gets only headers counts the same as from the bytes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from app.audit.counts.counter import CountingSpec
from app.audit.counts.partition_counter import PartitionReader
from app.kafka.fetch.decoder import records_of
from app.kafka.records.batch import HEADER_BYTES
from app.kafka.records.header_arrays import headers_of_heads
from app.kafka.records.verbatim_copy import CLEARED
from switchyard.audit.model.fingerprint import FingerprintSource
from switchyard.audit.model.reports import Scope
from tests.audit.counts.logs import Log
from tests.examples import as_profile

SCOPE, SOURCE = Scope("topic", "aggregate", "east", 100), FingerprintSource("cluster", "id", 0)
HOW = CountingSpec(records_of, SOURCE, disorder_ms=10)


def reader() -> PartitionReader:
    return PartitionReader(SCOPE, SOURCE, HOW, 0, part_offsets=16)


def reports_of(one: PartitionReader) -> list[Any]:
    """All of its reports but how late records were."""
    return [
        (
            report.id, report.part, report.since, report.upto, report.final,
            [
                (
                    found.start_ms, found.span, found.totals.count, found.totals.nbytes,
                    found.totals.first_ms, found.totals.last_ms, found.totals.offsets, found.totals.sourced,
                )
                for found in report.windows
            ],
        )
        for report in one.reports(10_000)
    ]  # fmt: skip


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=as_profile(200), deadline=None)
def test_headers_give_the_same_counts_as_bytes(seed: int) -> None:
    chance, log = random.Random(seed), Log()
    for _ in range(30):
        first = chance.randrange(400)
        log.append([first + chance.randrange(30) for _ in range(chance.choice([1, 3, 9]))])
    plain, other = reader(), reader()
    add_headers = 0
    while other.next_offset < log.next_offset:
        data, end = log.fetch(other.next_offset, chance.randrange(1, 6))
        found = [(base, data) for base, data, _ in log.batches if other.next_offset <= base < end]
        plain.fetched(data, end, at_ms=9)
        heads = [b"\0" * 8 + data[8:HEADER_BYTES] for _, data in found]
        headers = headers_of_heads(heads, [base for base, _ in found], CLEARED)
        assert headers is not None
        count = other.countable_from_headers(headers)
        if count:
            some, seen = headers.of(slice(count)), np.full(count, 9, dtype=np.int64)
            other.add_headers(some, int(some.next_offset[-1]), at_ms=9, seen_at_ms=seen)
            add_headers += count
        if count < len(found):
            other.fetched(data, end, at_ms=9)
    assert reports_of(other) == reports_of(plain)
    assert (other.records, other.next_offset) == (plain.records, plain.next_offset)
    assert add_headers


def test_batches_with_insufficient_headers_are_not_counted_from_them() -> None:
    log = Log()
    for times in ([50, 60], [105, 90], [150, 160], [250, 310], [401]):
        log.append(times)
    heads = [data[:HEADER_BYTES] for _, data, _ in log.batches]
    bases = [base for base, _, _ in log.batches]

    def count(start: int, how: CountingSpec = HOW) -> int:
        headers = headers_of_heads(heads[start:], bases[start:], CLEARED)
        assert headers is not None
        return PartitionReader(SCOPE, SOURCE, how, 0).countable_from_headers(headers)

    assert [count(start) for start in range(5)] == [1, 0, 1, 0, 1]
    assert count(0, HOW._replace(by_value=True)) == count(0, HOW._replace(id_of=lambda _: b"")) == 0
