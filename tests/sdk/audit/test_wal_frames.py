"""The frames of the write-ahead log: cut short, damaged, and mixed with older files."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from switchyard.audit.wal_frames import MAGIC, OVERHEAD_BYTES, found, framed, written

PAYLOADS = st.lists(st.binary(max_size=40), min_size=1, max_size=8)


@given(PAYLOADS)
def test_written_frames_are_read(payloads: list[bytes]) -> None:
    data = written(payloads)
    assert found(data) == (tuple(payloads), len(data), 0, False)


@given(PAYLOADS, st.data())
def test_a_file_cut_anywhere_gives_its_whole_frames_and_is_not_damaged(
    payloads: list[bytes], draw: st.DataObject
) -> None:
    data = written(payloads)
    cut = draw.draw(st.integers(0, len(data)))
    ends = [len(written(payloads[:many])) for many in range(len(payloads) + 1)]
    whole = max((many for many, end in enumerate(ends) if end <= cut), default=0)
    read = found(data[:cut])
    assert read.payloads == tuple(payloads[:whole])
    assert read.end + read.torn_bytes == cut
    assert not read.is_damaged


@given(PAYLOADS, st.data())
def test_a_flipped_bit_never_changes_what_is_read_and_is_damage_unless_it_is_in_the_last_frame(
    payloads: list[bytes], draw: st.DataObject
) -> None:
    data = bytearray(written(payloads))
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    data[bit // 8] ^= 1 << bit % 8
    ends = [len(written(payloads[:many])) for many in range(len(payloads) + 1)]
    hit = sum(end <= bit // 8 for end in ends) - 1  # the frame that has the bit; -1: the file's header
    read = found(bytes(data))
    assert read.payloads == tuple(payloads[: max(0, hit)])
    assert read.is_damaged == (hit < len(payloads) - 1)


@given(PAYLOADS, st.binary(max_size=60), st.integers(0, 40))
def test_rubbish_behind_a_file_is_a_torn_tail(payloads: list[bytes], rubbish: bytes, zeros: int) -> None:
    tail = bytes(zeros) + rubbish
    data = written(payloads)
    assume(not found(data + tail).payloads[len(payloads) :])  # random bytes are a frame once in 2^96 cases
    assert found(data + tail) == (tuple(payloads), len(data), len(tail), False)


@given(PAYLOADS, PAYLOADS)
def test_frames_of_an_older_file_are_not_taken_for_those_of_this_one(
    new: list[bytes], old: list[bytes]
) -> None:
    number = len(new) + 100
    stale = b"".join(framed(number + index, payload) for index, payload in enumerate(old))
    assert found(written(new) + stale).payloads == tuple(new)


def test_a_length_that_reaches_beyond_the_file_reads_nothing() -> None:
    data = bytearray(written([b"first", b"second"]))
    data[len(MAGIC) : len(MAGIC) + 4] = b"\xff\xff\xff\xff"
    assert found(bytes(data)).payloads == ()
    assert found(bytes(data)).is_damaged


def test_a_long_tail_of_zeros_is_read_quickly() -> None:
    data = written([b"first"]) + bytes(8 << 20)
    assert found(data)[:3] == ((b"first",), len(MAGIC) + OVERHEAD_BYTES + 5, 8 << 20)
