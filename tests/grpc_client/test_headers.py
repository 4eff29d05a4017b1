"""HPACK against `hpack`: what one side writes, the other reads, and both tables stay the same."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.grpc_client.frames import ConnectionFault, ErrorCode
from app.grpc_client.header_decoder import (
    MAX_READ_BYTES,
    MAX_REMEMBERED,
    READ_FACTOR,
    HeaderDecoder,
    HeadersTooLarge,
)
from app.grpc_client.header_encoder import (
    MAX_KNOWN_FIELDS,
    MAX_KNOWN_NAMES,
    MAX_TABLE_BYTES,
    REUSES,
    Field,
    Fields,
    HeaderEncoder,
    header_list_size,
)
from tests.examples import as_profile
from tests.grpc_client.memory import METHOD, PSEUDO

MAX_LIST_BYTES = 2_000

names = st.sampled_from(
    [b":path", b"user-agent", b"te", b"x-a", b"x-b", b"authorization", b"x-" + b"n" * 200]
)
values = st.one_of(
    st.sampled_from([b"", b"/", b"trailers", b"value"]),
    st.binary(max_size=40),
    st.one_of(st.sampled_from([126, 127, 254, 255, 256]), st.integers(100, 5_000)).map(
        lambda size: b"v" * size
    ),
)
field_lists = st.lists(st.tuples(names, values), max_size=12)
fields_sets = st.builds(Fields, field_lists, st.sets(names, max_size=2))
table_sizes = st.one_of(
    st.sampled_from([0, 31, 32, 100, 300, 1_000, MAX_TABLE_BYTES, MAX_TABLE_BYTES + 1, 2**32 - 1]),
    st.integers(0, 2 * MAX_TABLE_BYTES),
)


@dataclass(frozen=True)
class Request:
    """The request whose shared fields are the set with number `which`; before it, the peer's settings."""

    which: int
    changing: list[Field]
    sizes: list[int]
    repeats: int


requests = st.builds(
    Request,
    which=st.integers(0, 3),
    changing=st.lists(st.tuples(names, values), max_size=3),
    sizes=st.lists(table_sizes, max_size=3),
    repeats=st.sampled_from([1, 1, 2, REUSES + 1]),
)


def entry_sum(table: list[Field]) -> int:
    return sum(len(name) + len(value) + 32 for name, value in table)


@settings(max_examples=as_profile(400), deadline=None)
@given(st.lists(fields_sets, min_size=4, max_size=4), st.lists(requests, max_size=25))
def test_each_block_decodes_to_its_fields_and_secrets_stay_out_of_tables(
    sets: list[Fields], made: list[Request]
) -> None:
    encoder, decoder = HeaderEncoder(), Decoder(2**30)
    secrets = {field for one in sets for field in one.fields if field[0] in one.secret}
    public = {field for one in sets for field in one.fields if field[0] not in one.secret}
    for request in made:
        for size in request.sizes:
            encoder.limit_table(size)
            decoder.max_allowed_table_size = size
        for _ in range(request.repeats):
            fields = sets[request.which]
            block = encoder.encode(fields, request.changing)
            found = list(decoder.decode(block, raw=True))
            assert found == [*fields.fields, *request.changing]
            never_indexed = [isinstance(field, NeverIndexedHeaderTuple) for field in found]
            assert never_indexed == [name in fields.secret for name, _ in found]
            table = list(decoder.header_table.dynamic_entries)
            assert list(encoder._entries) == table
            assert entry_sum(table) == encoder._size <= min(MAX_TABLE_BYTES, decoder.header_table_size)
            assert public.issuperset(table)
            assert not (secrets - public).intersection(table)


@given(field_lists, st.integers(0, 3))
@example([(b"x-twice", b"v" * 1_500)] * 3, 0)
def test_fields_that_fit_into_the_table_become_a_byte_each(fields: list[Field], others: int) -> None:
    encoder, shared = HeaderEncoder(), Fields(fields)
    if entry_sum(sorted(set(fields))) > MAX_TABLE_BYTES // 2:
        return
    encoder.encode(shared)
    for at in range(others):
        encoder.encode(Fields([(b"x-other", b"%d" % at)]))
    encoder.encode(shared)
    assert len(encoder.encode(shared)) == len(fields)


def test_a_method_s_headers_become_a_byte_each_and_the_call_s_own_follow() -> None:
    encoder = HeaderEncoder()
    first = encoder.encode(METHOD)
    assert len(encoder.encode(METHOD)) == len(METHOD.fields) < len(first)
    own = [(b"x-number", b"17")]
    assert encoder.encode(METHOD, own) == encoder.encode(METHOD) + b"\0\x08x-number\x0217"


@given(st.lists(table_sizes, min_size=1, max_size=5))
def test_a_table_that_shrank_and_grew_again_serves_each_fields(sizes: list[int]) -> None:
    """After any settings that end with the full size, all is a byte each again."""
    encoder, decoder = HeaderEncoder(), Decoder()
    static = Fields([(b":method", b"POST")])  # brings nothing into the table
    methods = [static, *(Fields([*PSEUDO, (b"x-method", b"%d" % at)]) for at in range(3))]
    for size in [*sizes, MAX_TABLE_BYTES]:
        encoder.limit_table(size)
        decoder.max_allowed_table_size = size
        for method in [static, *methods, *methods]:
            assert list(decoder.decode(encoder.encode(method), raw=True)) == list(method.fields)
    for method in methods:
        assert len(encoder.encode(method)) == len(method.fields)


def test_a_secret_takes_no_room_from_other_fields() -> None:
    encoder = HeaderEncoder()
    secret = (b"authorization", b"s" * MAX_TABLE_BYTES)
    fields = Fields([*METHOD.fields, secret], [b"authorization"])
    encoder.encode(fields)
    block = encoder.encode(fields)
    assert block.endswith(secret[1])
    assert len(block) < len(METHOD.fields) + len(secret[1]) + 10
    assert encoder.encode(fields) is block  # it is not made again


def test_fields_used_again_take_the_place_of_others_in_a_full_table() -> None:
    encoder, decoder = HeaderEncoder(), Decoder()

    def send(fields: Fields) -> int:
        block = encoder.encode(fields)
        assert list(decoder.decode(block, raw=True)) == list(fields.fields)
        return len(block)

    old = [Fields([(b"x-old", b"%d" % at + b"o" * 900)]) for at in range(4)]
    for fields in old * 2:
        send(fields)
    new = Fields([(b"x-new", b"n" * 900)])
    sizes = [send(new) for _ in range(REUSES + 1)]
    assert min(sizes[:REUSES]) > 900  # used too seldom to be worth a place
    assert sizes[REUSES] == 1
    assert send(old[0]) > 900  # the oldest gave its place


def test_fields_larger_than_the_table_are_sent_in_full_each_time() -> None:
    encoder = HeaderEncoder()
    encoder.encode(METHOD)
    large = Fields([(b"x-large", b"l" * MAX_TABLE_BYTES)])
    assert {len(encoder.encode(large)) for _ in range(2 * REUSES)} == {len(b"l" * MAX_TABLE_BYTES) + 12}
    assert len(encoder.encode(METHOD)) == len(METHOD.fields)  # it drove nothing out


def test_metadata_that_is_no_bytes_leaves_the_table_as_it_was() -> None:
    encoder, decoder = HeaderEncoder(), Decoder()
    wrong: Any = [(b"x-own", "text")]
    with pytest.raises(TypeError):
        encoder.encode(METHOD, wrong)
    for _ in range(2):
        assert list(decoder.decode(encoder.encode(METHOD), raw=True)) == list(METHOD.fields)


def test_calls_with_ever_new_names_and_fields_do_not_fill_memory() -> None:
    encoder, decoder = HeaderEncoder(), Decoder()
    for at in range(max(MAX_KNOWN_FIELDS, MAX_KNOWN_NAMES) + 10):
        fields, own = Fields([(b"x-shared", b"%d" % at)]), (b"x-own-%d" % at, b"value")
        block = encoder.encode(fields, [own])
        assert list(decoder.decode(block, raw=True)) == [*fields.fields, own]
    assert len(encoder._blocks) <= MAX_KNOWN_FIELDS
    assert len(encoder._name_literals) <= MAX_KNOWN_NAMES


def test_the_size_of_a_header_list_is_counted_as_rfc_9113_says() -> None:
    assert header_list_size([(b"te", b"trailers"), (b"x", b"")]) == 10 + 32 + 1 + 32


# Answers


@dataclass(frozen=True)
class Block:
    fields: list[Field]
    sensitive: set[int]
    huffman: bool
    table_size: int | None


blocks = st.builds(
    Block,
    fields=st.lists(
        st.tuples(names, st.one_of(st.sampled_from([b"", b"0", b"200"]), st.binary(max_size=30)))
    ),
    sensitive=st.sets(st.integers(0, 5), max_size=2),
    huffman=st.booleans(),
    table_size=st.one_of(st.none(), st.integers(0, MAX_TABLE_BYTES)),
)


@settings(max_examples=as_profile(400), deadline=None)
@given(st.lists(st.tuples(blocks, st.integers(1, 3)), max_size=20))
def test_answers_decode_as_with_hpack_whether_remembered_or_not(sent: list[tuple[Block, int]]) -> None:
    encoder, reference, decoder = Encoder(), Decoder(2**30), HeaderDecoder(2**30)
    for block, repeats in sent:
        for _ in range(repeats):
            if block.table_size is not None:
                encoder.header_table_size = block.table_size
            fields = [(n, v, at in block.sensitive) for at, (n, v) in enumerate(block.fields)]
            coded = encoder.encode(fields, huffman=block.huffman)
            expected = tuple((bytes(n), bytes(v)) for n, v in reference.decode(coded, raw=True))
            assert decoder.decode(coded) == expected
    assert len(decoder._remembered) <= MAX_REMEMBERED


def test_a_repeated_answer_is_the_same_object_until_the_table_changes() -> None:
    encoder, decoder = Encoder(), HeaderDecoder(MAX_LIST_BYTES)
    fields = [(b":status", b"200"), (b"content-type", b"application/grpc")]
    decoder.decode(encoder.encode(fields))
    repeated = encoder.encode(fields)
    found = decoder.decode(repeated)
    assert decoder.decode(encoder.encode(fields)) is found
    decoder.decode(encoder.encode([(b"x-new", b"moves the indices")]))
    moved = encoder.encode(fields)
    assert moved != repeated
    assert decoder.decode(moved) == found
    assert decoder.decode(repeated) != found


def test_a_block_that_changes_the_table_is_not_remembered() -> None:
    decoder, reference = HeaderDecoder(MAX_LIST_BYTES), Decoder()
    block = Encoder().encode([(b":authority", b"www")])  # inserts; none of its bytes is below 0x41
    for _ in range(3):
        assert decoder.decode(block) == tuple(reference.decode(block, raw=True))
    assert decoder._decoder.header_table.dynamic_entries == reference.header_table.dynamic_entries


def test_a_block_that_names_what_a_smaller_table_lost_is_a_fault() -> None:
    decoder, encoder = HeaderDecoder(MAX_LIST_BYTES), Encoder()
    decoder.decode(encoder.encode([(b"x-old", b"1")]))
    decoder.decode(encoder.encode([(b"x-new", b"2")]))
    old = b"\xbf"
    assert decoder.decode(old) == ((b"x-old", b"1"),)
    assert decoder.decode(b"\x3f\x09\xbe") == ((b"x-new", b"2"),)  # 40 bytes: the newest stays
    with pytest.raises(ConnectionFault):
        decoder.decode(old)


def test_blocks_of_ever_other_indices_do_not_fill_memory() -> None:
    decoder, random = HeaderDecoder(64 * 1024), Random(1)
    for _ in range(2 * MAX_REMEMBERED):
        decoder.decode(bytes(random.choices(range(0x81, 0x81 + 61), k=6)))
    assert len(decoder._remembered) <= MAX_REMEMBERED
    before = len(decoder._remembered)
    decoder.decode(b"\x88" * 65)  # a block for each long list of indices would be worth no memory
    assert len(decoder._remembered) == before


@settings(max_examples=as_profile(1_000), deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=60), st.lists(st.integers(0x80, 0xFF)).map(bytes)), max_size=8))
@example([b"\x3f\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"])
@example([b"\xff" * 10_000])
@example([b"\x40\x85\xff\xff\xff\xff\xff\x01a"])  # Huffman code that ends nowhere
@example([b"\x82\x3f\x00"])
@example([b""])
def test_any_bytes_decode_as_with_hpack_or_are_a_fault(sent: list[bytes]) -> None:
    decoder, reference = HeaderDecoder(MAX_LIST_BYTES), Decoder(READ_FACTOR * MAX_LIST_BYTES)
    for block in sent:
        try:
            expected = tuple((bytes(n), bytes(v)) for n, v in reference.decode(block, raw=True))
        except (HPACKError, IndexError, ValueError):
            with pytest.raises(ConnectionFault) as caught:
                decoder.decode(block)
            assert caught.value.code in {ErrorCode.COMPRESSION_ERROR, ErrorCode.ENHANCE_YOUR_CALM}
            assert str(caught.value).isprintable()
            assert "0x" not in str(caught.value)  # the peer reads it, and addresses are not for it
            return
        if header_list_size(expected) > MAX_LIST_BYTES:
            with pytest.raises(HeadersTooLarge):
                decoder.decode(block)
        else:
            assert decoder.decode(block) == expected


@given(blocks, st.data())
def test_a_block_that_is_cut_is_a_fault_or_fewer_fields(block: Block, data: st.DataObject) -> None:
    coded = Encoder().encode(block.fields, huffman=block.huffman)
    cut = coded[: data.draw(st.integers(0, len(coded)))]
    with contextlib.suppress(ConnectionFault):
        found = HeaderDecoder(2**20).decode(cut)
        assert list(found) == block.fields[: len(found)]


def test_headers_above_the_limit_are_refused_and_the_table_goes_on() -> None:
    decoder, encoder = HeaderDecoder(MAX_LIST_BYTES), Encoder()
    field = (b"x-new", b"1")
    large = (b"x", b"v" * (MAX_LIST_BYTES - 33 - header_list_size([field])))
    assert decoder.decode(encoder.encode([large, field])) == (large, field)  # just as large
    for _ in range(3):
        with pytest.raises(HeadersTooLarge, match=f"is {MAX_LIST_BYTES} bytes, and they have"):
            decoder.decode(encoder.encode([large, field, (b"y", b"")]))
    named = encoder.encode([field, (b"y", b"")])
    assert len(named) == 2
    assert decoder.decode(named) == (field, (b"y", b""))


def test_a_repeated_block_above_the_limit_is_refused_each_time() -> None:
    decoder, encoder = HeaderDecoder(MAX_LIST_BYTES), Encoder()
    large = (b"x", b"v" * (MAX_LIST_BYTES - 100))
    decoder.decode(encoder.encode([large]))
    for _ in range(3):
        with pytest.raises(HeadersTooLarge):
            decoder.decode(encoder.encode([large, large]))


@pytest.mark.parametrize(
    ("limit", "read"),
    [
        (MAX_LIST_BYTES, READ_FACTOR * MAX_LIST_BYTES),
        (MAX_READ_BYTES // 2, MAX_READ_BYTES),
        (MAX_READ_BYTES + 1, MAX_READ_BYTES + 1),
    ],
)
def test_headers_far_above_the_limit_are_a_fault(limit: int, read: int) -> None:
    if read > limit:
        with pytest.raises(HeadersTooLarge):
            HeaderDecoder(limit).decode(Encoder().encode([(b"x", b"v" * (read - 33))], huffman=False))
    with pytest.raises(ConnectionFault, match=f"larger than {read} bytes") as caught:
        HeaderDecoder(limit).decode(Encoder().encode([(b"x", b"v" * (read - 32))], huffman=False))
    assert caught.value.code == ErrorCode.ENHANCE_YOUR_CALM


def test_a_small_block_of_many_large_fields_is_a_fault() -> None:
    decoder = HeaderDecoder(64 * 1024)
    decoder.decode(Encoder().encode([(b"x", b"v" * 4_000)]))
    bomb = b"\xbe" * 10_000  # each byte is the entry of 4 KB
    with pytest.raises(ConnectionFault) as caught:
        decoder.decode(bomb)
    assert caught.value.code == ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("size", [MAX_TABLE_BYTES + 1, 2**40])
def test_a_table_larger_than_allowed_is_a_fault(size: int) -> None:
    encoder = Encoder()
    encoder.header_table_size = size
    with pytest.raises(ConnectionFault) as caught:
        HeaderDecoder(MAX_LIST_BYTES).decode(encoder.encode([(b"x", b"y")]))
    assert caught.value.code == ErrorCode.COMPRESSION_ERROR
