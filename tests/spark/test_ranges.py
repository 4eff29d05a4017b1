"""Which offset ranges an archiving round takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.archive.layout import ArchivedPartition, ArchivedReach, ArchiveGap
from spark.archive.ranges import next_round, share
from spark.topics import KafkaTopic, LogBounds, Range


def topic(*bounds: tuple[int, int], topic_id: str = "id-1") -> KafkaTopic:
    """A topic whose partitions have these bounds."""
    return KafkaTopic("orders", topic_id, {number: LogBounds(*ends) for number, ends in enumerate(bounds)})


def key_of(number: int, topic_id: str = "id-1") -> ArchivedPartition:
    """The archive's key of a partition of the topic."""
    return ArchivedPartition("orders", topic_id, number)


def test_a_round_continues_where_the_archive_ends_and_new_partitions_begin_at_their_start() -> None:
    found = next_round([topic((0, 50), (7, 9))], {key_of(0): ArchivedReach(0, 20)}, 1_000, 5)
    assert found.ranges == (Range("orders", 0, 20, 50), Range("orders", 1, 7, 9))
    assert found.after == {key_of(0): ArchivedReach(0, 50), key_of(1): ArchivedReach(7, 9)}
    assert found.before == {key_of(0): ArchivedReach(0, 20), key_of(1): ArchivedReach(7, 7)}
    assert (found.gaps, found.left) == ((), 0)


def test_records_deleted_before_they_were_archived_are_a_gap() -> None:
    found = next_round([topic((30, 50))], {key_of(0): ArchivedReach(0, 20)}, 1_000, 5)
    assert found.gaps == (ArchiveGap(key_of(0), 20, 30, 5),)
    assert found.ranges == (Range("orders", 0, 30, 50),)
    assert found.after == {key_of(0): ArchivedReach(0, 50)}


def test_a_gap_at_the_end_of_an_empty_partition_is_recorded_once() -> None:
    found = next_round([topic((30, 30))], {key_of(0): ArchivedReach(0, 20)}, 1_000, 5)
    assert (found.ranges, found.after) == ((), {key_of(0): ArchivedReach(0, 30)})
    assert next_round([topic((30, 30))], found.after, 1_000, 6).gaps == ()


def test_a_recreated_topic_begins_a_new_lineage() -> None:
    found = next_round([topic((0, 5), topic_id="id-2")], {key_of(0): ArchivedReach(0, 20)}, 1_000, 5)
    assert found.ranges == (Range("orders", 0, 0, 5),)
    assert found.after == {key_of(0, "id-2"): ArchivedReach(0, 5)}
    assert found.gaps == ()


def test_a_round_without_new_records_is_empty() -> None:
    found = next_round([topic((0, 20))], {key_of(0): ArchivedReach(0, 20)}, 1_000, 5)
    assert (found.ranges, found.after, found.gaps, found.left) == ((), {}, (), 0)


def test_an_end_offset_that_went_back_changes_nothing() -> None:
    found = next_round([topic((0, 15))], {key_of(0): ArchivedReach(0, 20)}, 1_000, 5)
    assert (found.ranges, found.after) == ((), {})


@given(st.dictionaries(st.integers(0, 9), st.integers(0, 1_000)), st.integers(1, 3_000))
def test_a_limit_is_shared_evenly_and_used_up(wanted: dict[int, int], limit: int) -> None:
    shares = share({key_of(number): wants for number, wants in wanted.items()}, limit)
    assert sum(shares.values()) == min(limit, sum(wanted.values()))
    most = max(shares.values(), default=0)
    for number, wants in wanted.items():
        assert shares[key_of(number)] <= wants
        assert shares[key_of(number)] == wants or shares[key_of(number)] >= most - 1
