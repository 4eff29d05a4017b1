"""Behind a former copier no copied record is copied again, and no other record is left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.replicate.model.copied_index import CopiedIndex


def in_parts(records: list[int], sizes: list[int]) -> list[list[int]]:
    """The records as batches of these sizes."""
    parts, at, turn = [], 0, 0
    while at < len(records):
        size = sizes[turn % len(sizes)]
        parts.append(records[at : at + size])
        at, turn = at + size, turn + 1
    return parts


def first_to_copy(already: CopiedIndex, batches: list[list[int]]) -> list[int]:
    """The records that are copied if the batches come in turn."""
    copied: list[int] = []
    for batch in batches:
        if already.is_over:
            copied += batch
        else:
            copied += batch[already.drop(batch) :]
    return copied


sizes = st.lists(st.integers(1, 7), min_size=1, max_size=4)
records = st.lists(st.integers(0, 6), max_size=40)


@given(records, sizes, st.data())
def test_from_a_source_that_lost_nothing_exactly_the_uncopied_records_are_copied(
    source: list[int], sizes: list[int], data: st.DataObject
) -> None:
    """Also if records are equal."""
    count = data.draw(st.integers(0, len(source)))
    already = CopiedIndex(source[:count])
    assert first_to_copy(already, in_parts(source, sizes)) == source[count:]
    assert already.passed == count
    assert not already.left
    assert not already.skipped


@given(st.integers(0, 40), sizes, st.data())
def test_records_that_have_gone_from_the_source_change_nothing(
    total: int, sizes: list[int], data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, total))
    gone = data.draw(st.sets(st.integers(0, total)))
    left = [one for one in range(total) if one not in gone]
    already = CopiedIndex(range(count))
    assert first_to_copy(already, in_parts(left, sizes)) == [one for one in left if one >= count]
    assert already.passed - already.skipped == len([one for one in left if one < count])


@given(records, sizes, st.data())
def test_nothing_that_was_not_copied_is_left_out_when_copies_are_found_late(
    source: list[int], sizes: list[int], data: st.DataObject
) -> None:
    """A second look that finds more copies has the result of one look that finds all."""
    count = data.draw(st.integers(0, len(source)))
    known = data.draw(st.integers(0, count))
    already = CopiedIndex(source[:known])
    dropped = already.drop(source)
    assert dropped == known
    already.add(source[known:count])
    rest = source[dropped:]
    assert rest[already.drop(rest) :] == source[count:]


def test_a_copy_that_the_source_never_had_ends_the_search_and_is_counted() -> None:
    already = CopiedIndex([1, 2, 99])
    assert already.drop([1, 2, 3]) == 2
    assert (already.is_over, already.left, already.passed) == (True, 1, 2)
