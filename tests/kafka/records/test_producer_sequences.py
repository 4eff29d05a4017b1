"""A producer's last record is known only if none of its numbers is missing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.kafka.records.producer_sequences import SEQUENCES, ProducerStamp, ProducerTail

ID = 7
Batch = tuple[int, int, ProducerStamp, int]  # offsets [start, end), the first number, records

counts = st.lists(st.integers(1, 5), max_size=6)


def written(
    epochs: list[tuple[int, list[int]]], first: ProducerStamp | None, floor: int, apart: int
) -> list[Batch]:
    """Batches of these sizes, by epoch; others' records lie between them."""
    found: list[Batch] = []
    at, last = floor, first
    for epoch, sizes in epochs:
        if last is None or last.epoch != epoch:
            last = ProducerStamp(ID, epoch, 0)
        for count in sizes:
            found.append((at, at + count, last, count))
            at, last = at + count + apart, last.behind(count)
    return found


def read(tail: ProducerTail, batches: list[Batch]) -> ProducerTail:
    for batch in batches:
        tail = tail.behind(*batch)
    return tail


@given(counts, counts, st.integers(0, 3), st.integers(SEQUENCES - 9, SEQUENCES - 1), st.booleans())
def test_numbers_continue_from_the_stamp_and_each_epoch_begins_at_0(
    earlier: list[int], later: list[int], apart: int, sequence: int, is_known: bool
) -> None:
    known = ProducerStamp(ID, 3, sequence) if is_known else None
    batches = written([(3, earlier), (19, later)], known, 100, apart)
    tail = read(ProducerTail(100, known), batches)
    assert tail.is_whole
    if not batches:
        assert tail == ProducerTail(100, known)
        return
    _, end, first, count = batches[-1]
    assert (tail.end, tail.stamp) == (end, first.behind(count))


@given(counts.filter(lambda sizes: len(sizes) > 1), st.data())
def test_missing_repeated_or_shortened_batch_makes_the_tail_incomplete(
    sizes: list[int], data: st.DataObject
) -> None:
    known = ProducerStamp(ID, 3, 40)
    batches = written([(3, sizes)], known, 100, 0)
    at = data.draw(st.integers(0, len(batches) - 2))
    start, end, first, count = batches[at]
    wrong = {
        "missing": [*batches[:at], *batches[at + 1 :]],
        "twice": [*batches[: at + 1], *batches[at:]],
        "compacted": [*batches[:at], (start, end, first, count - 1), *batches[at + 1 :]],
        "of a former epoch": [*batches, (end + 90, end + 91, first._replace(epoch=2, sequence=0), 1)],
    }
    assert not read(ProducerTail(100, known), data.draw(st.sampled_from(list(wrong.values())))).is_whole


def test_without_a_stamp_only_the_beginning_of_an_epoch_is_whole() -> None:
    assert not ProducerTail(100).behind(100, 101, ProducerStamp(ID, 3, 40), 1).is_whole
    assert (
        not ProducerTail(100, ProducerStamp(ID, 3, 40)).behind(100, 101, ProducerStamp(ID, 4, 1), 1).is_whole
    )
    assert ProducerTail(100, ProducerStamp(ID, 3, 40)).behind(100, 101, ProducerStamp(ID, 4, 0), 1).is_whole
