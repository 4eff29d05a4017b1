"""Prints of records: equal for equal records, also in batches that the decoder cannot read."""

from __future__ import annotations

import pytest

from app.kafka.fetch.decoder import records_of
from app.kafka.records.verbatim_copy import RecordsMissed, VerbatimCopy
from app.replicate.destination.predecessor import begins_at, drop_first, prints_of
from tests.kafka.records.batches import make_batch
from tests.kafka.records.test_verbatim_copy import the_batch


def a_copy(base_offset: int, value: bytes = b"v", header: str = "h") -> VerbatimCopy:
    """A copy of three records; brokers accept any bytes as a header's name."""
    data = make_batch(base_offset, [(b"k", value)] * 3, headers=[(header, b"1")])
    return VerbatimCopy(data.replace(b"\x02x", b"\x02\xff"), 3, base_offset, base_offset + 3)


def test_the_same_records_have_the_same_prints_wherever_they_lie() -> None:
    assert prints_of(a_copy(0), timed=True) == prints_of(a_copy(700), timed=True)
    assert not set(prints_of(a_copy(0), timed=True)) & set(prints_of(a_copy(0, b"other"), timed=True))


def test_a_batch_that_cannot_be_decoded_is_identified_by_its_bytes() -> None:
    unreadable = a_copy(5, header="x")
    with pytest.raises(UnicodeDecodeError):
        list(records_of(the_batch(unreadable.data)))
    prints = prints_of(unreadable, timed=True)
    assert len(set(prints)) == 3
    assert prints == prints_of(a_copy(900, header="x"), timed=False)
    assert prints != prints_of(a_copy(900, b"w", header="x"), timed=False)


def test_the_start_of_the_uncopied_rest_is_known_if_its_records_are_consecutive() -> None:
    data = make_batch(50, [(b"k", b"%d" % n) for n in range(4)])
    copy = VerbatimCopy(data, 4, 47, 60)
    assert begins_at(copy, copy) == 47, "the offsets before it have no record"
    (rest,) = drop_first(copy, 3, 1 << 20)
    assert (begins_at(rest, copy), rest.source_start, rest.source_end) == (53, 53, 60)
    apart = copy._replace(data=(-1).to_bytes(8, signed=True) + data[8:])
    (rest,) = drop_first(apart, 3, 1 << 20)
    assert begins_at(rest, apart) < 0
    assert rest.record_count == 1


def test_pieces_that_lack_records_of_a_copy_are_refused() -> None:
    copy = VerbatimCopy(make_batch(50, [(b"k", b"%d" % n) for n in range(4)]), 5, 50, 55)
    with pytest.raises(RecordsMissed, match=r"\[50, 55\) holds 5 records, but its pieces hold 4"):
        list(drop_first(copy, 1, 1 << 20))
