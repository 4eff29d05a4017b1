"""Comparisons report each change that was made to a copy, and nothing else."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark.verify import compare
from spark.verify.compare import between, by_content, by_offset, counted, without_headers
from tests.spark.conftest import NOON_MS, Row, frame, row

Finding = tuple[str, int | None, int | None, int | None]


def found(frame: DataFrame) -> list[Finding]:
    """The findings, sorted."""
    return sorted(
        ((one.kind, one.partition, one.source_offset, one.copy_offset) for one in frame.collect()), key=repr
    )


def shifted(rows: list[Row], by: int) -> list[Row]:
    """A copy of the rows, renumbered from offset `by`."""
    return [(topic, partition, at + by, *rest) for at, (topic, partition, _, *rest) in enumerate(rows)]  # type: ignore[misc]


ROWS = [row(offset) for offset in range(10)]


def test_a_faithful_copy_has_no_findings(session: SparkSession) -> None:
    source = frame(session, *ROWS)
    assert found(by_offset(source, source)) == []
    assert found(by_content(source, frame(session, *shifted(ROWS, 100)))) == []


def test_by_offset_finds_what_is_missing_doubled_foreign_and_altered(session: SparkSession) -> None:
    copy = [*ROWS[:3], ROWS[4], ROWS[4], ROWS[4], row(5, b"other"), *ROWS[6:], row(11)]
    assert found(by_offset(frame(session, *ROWS), frame(session, *copy))) == [
        ("altered", 0, 5, 5),
        ("doubled", 0, 4, 4),
        ("doubled", 0, 4, 4),
        ("foreign", 0, None, 11),
        ("missing", 0, 3, None),
    ]


def test_by_content_finds_what_is_missing_doubled_and_foreign(session: SparkSession) -> None:
    copy = shifted([*ROWS[:3], *ROWS[4:8], ROWS[7], *ROWS[8:], row(11), row(11)], 50)
    assert found(by_content(frame(session, *ROWS), frame(session, *copy))) == [
        ("doubled", 0, None, 57),
        ("foreign", 0, None, 60),
        ("foreign", 0, None, 61),
        ("missing", 0, 3, None),
    ]


def test_a_record_before_its_turn_is_reordered(session: SparkSession) -> None:
    copy = shifted([ROWS[0], ROWS[2], ROWS[1], *ROWS[3:]], 0)
    assert found(by_content(frame(session, *ROWS), frame(session, *copy))) == [("reordered", 0, 2, 1)]


@pytest.mark.deep(minutes=0.2)
def test_equal_records_match_one_by_one_and_a_surplus_is_doubled(session: SparkSession) -> None:
    same = [row(offset, b"same", at_ms=NOON_MS) for offset in range(3)]
    assert found(by_content(frame(session, *same), frame(session, *shifted(same, 7)))) == []
    assert found(by_content(frame(session, *same), frame(session, *shifted([*same, same[0]], 7)))) == [
        ("doubled", 0, None, 10)
    ]
    assert found(by_content(frame(session, *same), frame(session, *shifted(same[:2], 7)))) == [
        ("missing", 0, 2, None)
    ]


@pytest.mark.deep(minutes=0.1)
def test_with_other_partitions_order_is_kept_by_key(session: SparkSession) -> None:
    keyed = [row(offset, key=b"k%d" % (offset % 2)) for offset in range(6)]
    spread = [(*one[:1], offset % 2, offset, *one[3:]) for offset, one in enumerate(keyed)]
    assert found(by_content(frame(session, *keyed), frame(session, *spread), lanes="key")) == []
    turned = [
        *spread[:2],
        (*spread[4][:2], 2, *spread[4][3:]),
        spread[3],
        (*spread[2][:2], 4, *spread[2][3:]),
    ]
    assert found(by_content(frame(session, *keyed), frame(session, *turned), lanes="key")) == [
        ("missing", 0, 5, None),
        ("reordered", 0, 4, 2),
    ]


@pytest.mark.parametrize("seed", range(3))
def test_every_change_to_a_copy_is_found_over_many_blocks(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(compare, "BLOCK_OFFSETS", 8)
    dice = random.Random(seed)
    source = [row(offset, partition=partition) for partition in range(2) for offset in range(60)]
    kept = [one for one in source if dice.random() > 0.1]
    for _ in range(6):
        a, b = sorted(dice.sample(range(len(kept)), 2))
        kept[a], kept[b] = kept[b], kept[a]
    twice = dice.sample(kept, 5)
    copy = shifted([*kept, *twice], 0)
    wanted = Counter(
        {"missing": len(source) - len(kept), "doubled": 5, "reordered": overtakers(source, copy)}
    )
    findings = by_content(frame(session, *source), frame(session, *copy))
    sums: Counter[str] = Counter()
    for one in counted(findings).collect():
        sums[one["kind"]] += one["records"]
    assert sums == +wanted


def overtakers(source: list[Row], copy: list[Row]) -> int:
    """The number of records whose first copy precedes the copy of an earlier record of their partition."""
    places: dict[bytes | None, int] = {}
    for one in copy:
        places.setdefault(one[6], one[2])
    greatest: Counter[int] = Counter()
    late = 0
    for one in source:
        if one[6] in places:
            late += places[one[6]] < greatest[one[1]]
            greatest[one[1]] = max(greatest[one[1]], places[one[6]])
    return late


@pytest.mark.deep(minutes=0.1)
def test_headers_that_a_route_adds_and_times_outside_are_left_out(session: SparkSession) -> None:
    source = [row(0), row(1, headers=[("a", b"1")])]
    copy = [row(0, headers=[("from", b"x")]), row(1, headers=[("a", b"1"), ("from", b"x")]), row(2)]
    bare = without_headers(frame(session, *copy), ["from"])
    assert found(by_content(frame(session, *source), between(bare, None, NOON_MS + 2_000))) == []
    assert found(by_content(frame(session, *source), frame(session, *copy[:2]))) != []
