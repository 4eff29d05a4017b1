"""Reports: each counts once however often and in whatever order it arrives, and an impossible one is
refused.
"""

from __future__ import annotations

import json
import random
import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.audit.folds.collector import Collector
from app.audit.folds.counted_parts import NOTHING_COUNTED, Counted, ReportOutcome, count_report
from app.audit.folds.tier import CloseWindows, PlanBounds
from switchyard.audit.model.reports import (
    CLIENT_SHARDS,
    MOST_IDS,
    BadReport,
    Increment,
    Report,
    Scope,
    checked,
    client_report,
    report_id,
    shard_of,
    shard_of_client,
)
from switchyard.audit.model.totals import Totals

SCOPE = Scope("topic", "regional", "east", 1_000)


def report(part: int, since: int, upto: int, *, final: bool = False, source: str = "p/0") -> Report:
    found = report_id(SCOPE, source, part, since, upto, final=final)
    return Report(found, *SCOPE, source, 5, part=part, since=since, upto=upto, final=final)


def totals_of(since: int, upto: int) -> Totals:
    """The totals if every offset held one record of one byte."""
    return Totals(upto - since, upto - since)


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=6, unique=True).map(sorted),
    st.lists(st.integers(0, 5), max_size=20),
    st.booleans(),
)
def test_the_widest_report_of_a_part_counts_whatever_the_order(
    cuts: list[int], order: list[int], finishes: bool
) -> None:
    """Several owners read a part; their reports are lost, repeated and reordered."""
    reports = [report(3, 0, upto) for upto in cuts]
    if finishes:
        reports[-1] = report(3, 0, cuts[-1], final=True)
    total, counted, delivered = Totals(), NOTHING_COUNTED, set()
    for at in order:
        one = reports[at % len(reports)]
        delivered.add(one.upto)
        counted, added, _ = count_report(counted, one, totals_of(0, one.upto))
        total = total.plus(added)
        assert total == totals_of(0, max(delivered))
    assert len(counted.growing) <= 1


@given(st.lists(st.integers(0, 30), max_size=60), st.randoms(use_true_random=False))
def test_every_sequence_number_of_a_client_counts_once(sequences: list[int], shuffle: random.Random) -> None:
    counted, total = NOTHING_COUNTED, 0
    for sequence in sequences:
        one = client_report(SCOPE, "web@1", sequence, {0: Totals(1)}, at_ms=1, watermark_ms=1)
        counted, added, verdict = count_report(counted, one, Totals(1))
        assert (verdict is ReportOutcome.COUNTED) == bool(added.count)
        total += added.count
    assert total == len(set(sequences))
    assert len(counted.done) <= len(set(sequences))


def test_a_sequence_without_gaps_is_one_range() -> None:
    counted = NOTHING_COUNTED
    for sequence in (2, 0, 1, 4, 3):
        counted, _, _ = count_report(counted, report(sequence, 0, 1, final=True), Totals(1))
    assert counted == Counted(done=((0, 5),))


def test_a_final_report_of_known_counts_ends_the_part() -> None:
    counted, _, _ = count_report(NOTHING_COUNTED, report(0, 0, 9), totals_of(0, 9))
    counted, added, verdict = count_report(counted, report(0, 0, 9, final=True), totals_of(0, 9))
    assert (added.count, verdict, counted) == (0, ReportOutcome.COUNTED, Counted(done=((0, 1),)))
    assert count_report(counted, report(0, 0, 9), totals_of(0, 9))[2] is ReportOutcome.REPEATED


def test_a_part_whose_start_left_the_log_is_counted_from_where_its_reader_began() -> None:
    counted, _, _ = count_report(NOTHING_COUNTED, report(0, 0, 9), totals_of(0, 9))
    counted, added, _ = count_report(counted, report(0, 20, 25), totals_of(20, 25))
    assert added == totals_of(20, 25)
    counted, added, _ = count_report(counted, report(0, 20, 30, final=True), totals_of(20, 30))
    assert added == totals_of(25, 30)
    assert counted == Counted(done=((0, 1),))


def test_a_report_that_overlaps_is_refused_and_one_that_says_less_too() -> None:
    counted, _, _ = count_report(NOTHING_COUNTED, report(0, 0, 9), totals_of(0, 9))
    assert count_report(counted, report(0, 5, 12), totals_of(5, 12)) == (
        counted,
        Totals(),
        ReportOutcome.OVERLAPS,
    )
    assert count_report(counted, report(0, 0, 12), totals_of(0, 8)) == (
        counted,
        Totals(),
        ReportOutcome.OVERLAPS,
    )
    assert count_report(counted, report(0, 3, 7), totals_of(3, 7))[2] is ReportOutcome.REPEATED


def test_reports_without_a_sequence_are_known_by_their_uuid() -> None:
    counted, total = NOTHING_COUNTED, 0
    ids = [str(uuid.UUID(int=number)) for number in (1, 2, 1, 3, 2)]
    for name in ids:
        counted, added, _ = count_report(counted, Report(name, *SCOPE, "http", 5), Totals(1))
        total += added.count
    assert total == 3
    full = Counted(ids=tuple(str(uuid.UUID(int=number)) for number in range(MOST_IDS)))
    new = str(uuid.UUID(int=MOST_IDS))
    assert count_report(full, Report(new, *SCOPE, "http", 5), Totals(1))[2] is ReportOutcome.TOO_MANY


def test_equal_reports_have_the_same_uuid() -> None:
    assert report(1, 0, 5).id == report(1, 0, 5).id
    ids = {
        report(1, 0, 5).id,
        report(1, 0, 6).id,
        report(1, 0, 5, final=True).id,
        report(1, 0, 5, source="p/1").id,
    }
    assert len(ids) == 4
    assert shard_of(7) == 0
    assert shard_of(8) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": "seven"}, "UUID"),
        ({"topic": "a/b"}, "topic 'a/b': use letters"),
        ({"tier": ""}, "tier ''"),
        ({"cluster": "east\n"}, "cluster"),
        ({"cluster": "east:billing:x"}, "cluster 'east:billing:x'"),
        ({"shard": -1}, "shard -1"),
        ({"shard": 1}, "shard 1; its source belongs in 0 or"),
        ({"source": "p/99", "shard": 13}, "shard 13; its source belongs in 0 or"),
        ({"source": "web@1", "shard": 1 << 40}, "shard 1099511627776"),
        ({"width_ms": 0}, "windows of 0"),
        ({"part": -2}, "part -2"),
        ({"since": 9, "upto": 3}, "part 1"),
        ({"at_ms": -1}, "time below"),
        ({"width_ms": 1 << 60}, "windows of 11529"),
        ({"watermark_ms": -(1 << 70)}, "time below"),
        ({"complete_ms": -2}, "time below"),
        ({"windows": (Increment(5, Totals()),)}, "begins at 5"),
        ({"windows": (Increment(10**30, Totals()),)}, "begins at 10000"),
        ({"windows": (Increment(0, Totals(), (0, 1 << 70)),)}, "offsets"),
        ({"windows": (Increment(0, Totals()), Increment(0, Totals()))}, "twice"),
        ({"windows": (Increment(0, Totals(count=-1)),)}, "below 0"),
        ({"windows": (Increment(0, Totals(count=1 << 51)),)}, "a count of 2251799813685248"),
        ({"windows": (Increment(0, Totals(nbytes=1 << 51)),)}, "a count of 2251799813685248"),
        ({"windows": (Increment(0, Totals(latencies=b"x")),)}, "histogram"),
        ({"windows": (Increment(0, Totals(latencies=b"\1\x08\1\0\0\0" + b"\x7f" * 8)),)}, "histogram"),
        ({"source": ""}, "name of 0 characters"),
        ({"source": "s" * 601}, "name of 601 characters"),
    ],
)
def test_a_report_with_impossible_contents_is_refused(change: dict[str, object], words: str) -> None:
    good = report(1, 0, 5)
    assert checked(good) is good
    checked(msgspec.structs.replace(good, cluster="east:billing"))
    with pytest.raises(BadReport, match=words):
        checked(msgspec.structs.replace(good, **change))


def test_a_report_crosses_a_topic_as_json() -> None:
    one = client_report(
        SCOPE, "web@1", 7, {0: Totals(1, latencies=b"\x01\x01\x00\x00")}, at_ms=9, watermark_ms=8
    )
    data = msgspec.json.encode(one)
    assert msgspec.json.decode(data, type=Report) == one
    assert json.loads(data)["type"] == "report"


def test_clients_of_a_topic_are_spread_and_each_stays_where_it_is() -> None:
    names = [f"client-{number}" for number in range(200)]
    shards = {name: shard_of_client(f"{name}@1") for name in names}
    assert set(shards.values()) == set(range(CLIENT_SHARDS))
    assert all(
        shard_of_client(f"{name}@{2}") == shard_of_client(name) == shard for name, shard in shards.items()
    )
    made = client_report(SCOPE, "client-7@1", 0, {}, at_ms=1, watermark_ms=1)
    assert made.shard == shards["client-7"]


def test_a_source_is_taken_where_its_maker_puts_it_or_former_versions_did() -> None:
    names = [f"client-{number}@1" for number in range(9)]
    clients = [client_report(SCOPE, name, 0, {}, at_ms=1, watermark_ms=1) for name in names]
    partition = msgspec.structs.replace(report(1, 0, 5, source="9qSU/99@3"), shard=shard_of(99))
    for made in (*clients, partition):
        for shard in (made.shard, 0):
            checked(msgspec.structs.replace(made, shard=shard))


def test_many_clients_make_no_large_value_and_are_added_up() -> None:
    collector, clients = Collector(), 400
    for position in range(2 * clients):  # each report comes twice
        name = f"client-{position % clients}@0"
        collector.apply(client_report(SCOPE, name, 0, {0: Totals(1)}, at_ms=9, watermark_ms=9), position)
    sizes = [len(msgspec.json.encode(record)) for record in collector.windows.values()]
    assert len(sizes) == CLIENT_SHARDS
    assert max(sizes) < sum(sizes) / 4
    assert sum(record.totals.count for record in collector.windows.values()) == clients


def test_a_client_that_continues_in_another_table_value_counts_once_and_holds_no_window_open() -> None:
    """An older version of the client reported into the first value; its kept reports are sent unchanged."""
    bounds, collector, source = PlanBounds(lateness_ms=0, silence_ms=10_000), Collector(), "client-7@1"
    made = [
        client_report(
            SCOPE, source, number, {0: Totals(1)}, at_ms=number * 8_000, watermark_ms=number * 8_000
        )
        for number in range(4)
    ]
    old = [msgspec.structs.replace(one, shard=0) for one in made[:2]]
    assert made[0].shard, "the shard differs from that of older versions"
    for position, one in enumerate([*old, *made[2:], *old, *made[2:]]):
        collector.apply(one, position, recorded_ms=24_000)
    assert sum(record.totals.count for record in collector.windows.values()) == 4
    (close,) = [one for one in collector.due(24_000, bounds) if isinstance(one, CloseWindows)]
    assert (close.before_ms, close.without) == (24_000, ())
