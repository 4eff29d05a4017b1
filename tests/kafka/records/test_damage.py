"""Everything sound in a damaged log is taken at its own offsets; damage costs only its own offsets."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from app.kafka.records.batch import OLD_PIECE_BYTES, CorruptBatch, ResponsePiece, take
from tests.kafka.records.batches import LAST_DELTA_AT, LENGTH_AT, MAGIC_AT, make_batch, old_messages, patched

LENGTH, LEADER_EPOCH, MAGIC = range(8, 12), range(12, 16), range(16, 17)
ROWS = [(None, b"one")] * 10
FIRST, SECOND, THIRD = (make_batch(base, ROWS) for base in (0, 10, 20))


def read_on(log: list[tuple[int, bytes]], end: int) -> tuple[list[tuple[int, int, bytes, str]], str]:
    """Fetches until the end or an error, from a broker that knows the place of each batch."""
    taken: list[tuple[int, int, bytes, str]] = []
    position = 0
    while position < end:
        rest = b"".join(batch for last, batch in log if last >= position)
        try:
            pieces = take(rest, position, end, calc_crc32c)
        except CorruptBatch as error:
            return taken, str(error)
        assert pieces, "it asks for ever"
        for piece in pieces:
            assert piece.next_offset > position
            content = rest[piece.start_byte : piece.end_byte]
            taken.append((position, piece.next_offset, content, piece.damage))
            position = piece.next_offset
    return taken, ""


sizes = st.lists(st.integers(1, 6), min_size=1, max_size=6)


@given(sizes, st.integers(0, 2**60), st.integers(0, 40))
def test_sound_log_is_taken_whole_up_to_a_truncated_tail(counts: list[int], first: int, cut: int) -> None:
    ends = list(accumulate(counts, initial=first))
    batches = [make_batch(base, ROWS[:count]) for base, count in zip(ends, counts, strict=False)]
    last = batches[-1][: len(batches[-1]) - cut]
    data = b"".join(batches[:-1]) + last
    whole = len(data) if not cut else len(data) - len(last)

    found = take(data, first, ends[-1], calc_crc32c)

    assert found == ([ResponsePiece(0, whole, ends[-1 if not cut else -2], "")] if whole else [])


@given(sizes, st.data())
def test_flipped_bit_costs_its_own_batch_and_no_neighbour(counts: list[int], data: st.DataObject) -> None:
    ends = list(accumulate(counts, initial=0))
    log = [(end - 1, make_batch(base, ROWS[: end - base])) for base, end in pairwise(ends)]
    log += [(ends[-1], make_batch(ends[-1]))]  # one behind it: its end is known
    end = ends[-1] + 1
    bad = data.draw(st.integers(0, len(counts) - 1))
    last, batch = log[bad]
    # The first one's base offset stands alone, and a length holds the frames together.
    places = [at for at in range(8 if bad == 0 else 0, len(batch)) if at not in LENGTH]
    at = data.draw(st.sampled_from(places))
    damaged = patched(batch, at, ">B", batch[at] ^ (1 << data.draw(st.integers(0, 7))))
    log[bad] = (last, damaged)

    taken, trouble = read_on(log, end)

    assert trouble == ""
    if at in LEADER_EPOCH:  # not read
        assert b"".join(content for _, _, content, damage in taken if not damage) == b"".join(
            b for _, b in log
        )
        return
    ((start, stop, content, _),) = [entry for entry in taken if entry[3]]
    assert (start, stop, content) == (ends[bad], ends[bad + 1], damaged)
    sound = b"".join(batch for number, (_, batch) in enumerate(log) if number != bad)
    assert b"".join(content for _, _, content, damage in taken if not damage) == sound


@pytest.mark.parametrize("delta", [-1, 0, 3, 10, 25, 9 + (1 << 28)])
def test_damaged_last_offset_delta_is_not_trusted(delta: int) -> None:
    damaged = patched(FIRST, LAST_DELTA_AT, ">i", delta)

    (piece,) = take(damaged + SECOND + THIRD, 0, 30, calc_crc32c)

    assert piece == ResponsePiece(0, len(damaged), 10, "its checksum does not match")


@pytest.mark.parametrize("log_end", [20, 11])
def test_damage_at_the_end_of_a_response_waits_until_its_end_is_known(log_end: int) -> None:
    damaged = patched(SECOND, LAST_DELTA_AT, ">i", 25)
    assert take(FIRST + damaged, 0, log_end, calc_crc32c) == [ResponsePiece(0, len(FIRST), 10, "")]

    with pytest.raises(CorruptBatch, match="where it ends is not known"):
        take(damaged, 10, log_end, calc_crc32c)
    (piece,) = take(damaged + THIRD, 10, 30, calc_crc32c)
    assert (piece.next_offset, piece.end_byte) == (20, len(damaged))


def test_damage_that_ends_at_the_brokers_log_end_does_not_wait() -> None:
    damaged = patched(SECOND, len(SECOND) - 1, ">B", 0x55)

    (piece,) = take(damaged, 10, 20, calc_crc32c)

    assert (piece.next_offset, piece.damage) == (20, "its checksum does not match")


def test_adjacent_damaged_batches_are_one_piece() -> None:
    damaged = [patched(batch, len(batch) - 1, ">B", 0x55) for batch in (FIRST, SECOND)]

    (piece,) = take(b"".join(damaged) + THIRD, 0, 30, calc_crc32c)

    assert piece == ResponsePiece(0, len(FIRST + SECOND), 20, "its checksum does not match")


def test_damaged_batch_below_the_position_is_not_reported_again() -> None:
    damaged = patched(FIRST, LAST_DELTA_AT, ">i", 25)  # by its header it holds offset 20

    (piece,) = take(damaged + SECOND + THIRD, 20, 30, calc_crc32c)

    assert piece == ResponsePiece(len(damaged), len(damaged + SECOND + THIRD), 30, "")


@pytest.mark.parametrize("base", [0, 4, 11, 18, 1 << 40])
def test_base_offset_that_contradicts_its_neighbours_is_not_trusted(base: int) -> None:
    moved = patched(SECOND, 0, ">q", base)

    sound, damaged = take(FIRST + moved + THIRD, 0, 30, calc_crc32c)

    assert (sound.next_offset, damaged.next_offset, damaged.end_byte) == (10, 20, len(FIRST + SECOND))
    assert "offset" in damaged.damage


def test_compaction_gaps_are_not_damage() -> None:
    data = FIRST + THIRD + make_batch(500, ROWS)

    assert take(data, 0, 510, calc_crc32c) == [ResponsePiece(0, len(data), 510, "")]


@pytest.mark.parametrize("length", [-1, 0, 2**31 - 1])
def test_bytes_without_batch_frames_raise(length: int) -> None:
    broken = patched(SECOND, LENGTH_AT, ">i", length)
    assert take(FIRST + broken, 0, 30, calc_crc32c) == [ResponsePiece(0, len(FIRST), 10, "")]

    with pytest.raises(CorruptBatch, match=f"length {length}"):
        take(broken + THIRD, 10, 30, calc_crc32c)


def test_unknown_format_is_named() -> None:
    (piece,) = take(patched(FIRST, MAGIC_AT, ">b", 3) + SECOND, 0, 20, calc_crc32c)

    assert (piece.next_offset, piece.damage[:7]) == (10, "magic 3")


old_or_new = st.tuples(st.sampled_from([0, 1, 2]), st.sampled_from([0, 1, 2]), st.integers(1, 4))


@given(st.lists(old_or_new, min_size=1, max_size=8), st.data())
def test_old_messages_are_reported_with_their_offsets_from_any_position(
    plans: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    log: list[tuple[int, bytes]] = []
    end, formats = 0, list[int]()
    for magic, codec, count in plans:
        values = [value for _, value in ROWS[:count]]
        old = old_messages(end, values, magic=min(magic, 1), codec=codec)
        log.append((end + count - 1, make_batch(end, ROWS[:count]) if magic == 2 else old))
        formats += [magic] * count
        end += count
    taken, trouble = read_on(log, end)
    assert trouble == ""
    assert b"".join(content for _, _, content, _ in taken) == b"".join(batch for _, batch in log)
    for start, behind, _, damage in taken:
        (magic,) = set(formats[start:behind])
        assert (damage == "") == (magic == 2)
        assert magic == 2 or f"record format {magic}, from before Kafka 0.11" in damage
    at = data.draw(st.integers(0, end - 1))
    rest = b"".join(batch for last, batch in log if last >= at)
    pieces = take(rest[: len(rest) - data.draw(st.integers(0, 20))], at, end, calc_crc32c)
    assert all(before.next_offset < piece.next_offset <= end for before, piece in pairwise(pieces))


def test_damaged_old_message_costs_only_itself() -> None:
    damaged = old_messages(10, [b"v"])[:-1] + b"w"
    sound, damage = take(FIRST + damaged + make_batch(11), 0, 12, calc_crc32c)
    assert (sound.next_offset, damage.next_offset) == (10, 11)
    assert damage.damage == "its checksum does not match"


def test_piece_of_old_messages_fits_into_a_dead_letter() -> None:
    values = [bytes(1000)] * 1500
    data = old_messages(0, values)
    pieces = take(data, 0, len(values), calc_crc32c)
    assert [piece.start_byte for piece in pieces[1:]] == [piece.end_byte for piece in pieces[:-1]]
    assert (pieces[0].start_byte, pieces[-1].end_byte, pieces[-1].next_offset) == (0, len(data), len(values))
    assert all(piece.end_byte - piece.start_byte <= OLD_PIECE_BYTES for piece in pieces)
    assert len(pieces) == -(-len(data) // OLD_PIECE_BYTES)


@given(st.binary(max_size=300), st.integers(0, 100))
def test_garbage_never_moves_the_position_without_a_report(data: bytes, position: int) -> None:
    try:
        pieces = take(data, position, 2**62, calc_crc32c)
    except CorruptBatch:
        return
    assert pieces == []
