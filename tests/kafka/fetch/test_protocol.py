"""Fetch requests and answers, written and read by hand, against aiokafka's schemas for the same versions."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Sequence
from io import BytesIO
from typing import Any, NamedTuple

import pytest
from aiokafka.protocol.api import Response
from aiokafka.protocol.fetch import (
    FetchRequest,
    FetchRequest_v4,
    FetchRequest_v5,
    FetchRequest_v6,
    FetchRequest_v7,
    FetchRequest_v8,
    FetchRequest_v9,
    FetchRequest_v10,
    FetchRequest_v11,
    FetchRequestStruct,
    FetchResponse_v11,
)
from hypothesis import example, given
from hypothesis import strategies as st

from app.kafka.client.cluster import READ_COMMITTED
from app.kafka.fetch.protocol import (
    MIN_BYTES,
    AnswerV11,
    Fetch,
    FetchV11,
    PartitionAnswer,
    WantedPartition,
    answers_of,
)

OLDER: list[type[FetchRequestStruct]] = [
    FetchRequest_v4, FetchRequest_v5, FetchRequest_v6, FetchRequest_v7, FetchRequest_v8, FetchRequest_v9,
    FetchRequest_v10,
]  # fmt: skip
FIRST_WITH_EPOCHS = 9
ANY_EPOCH = -1
CONSUMER, NO_SESSION, FINAL_EPOCH, NO_LOG_START = -1, 0, -1, -1
FETCH_KEY = 1  # Kafka's API key
MOST = 2**31 - 1
SMALL_BYTES = 200_000  # of memory, to refuse an answer of less than 200 bytes
WRONG = (ValueError, struct.error)

int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
any_text = st.text(st.characters(codec="utf-8"), max_size=60)
names = st.sampled_from(["orders", "räume", "", "主题.🚚"]) | any_text
wanted_lists = st.lists(st.builds(WantedPartition, names, int32s, int32s, int64s, int32s), max_size=12)


class Fields(NamedTuple):
    """A partition's part of a response, by aiokafka's names for the fields that any version has."""

    partition: int
    error_code: int
    highwater_offset: int
    last_stable_offset: int
    log_start_offset: int
    aborted_transactions: list[tuple[int, int]] | None
    preferred_read_replica: int
    message_set: bytes | None

    def answer(self, topic: str) -> PartitionAnswer:
        return PartitionAnswer(
            topic,
            self.partition,
            self.error_code,
            self.highwater_offset,
            self.last_stable_offset,
            self.aborted_transactions or [],
            self.message_set or b"",
        )


Topics = list[tuple[str, list[Fields]]]

aborted_lists = st.none() | st.lists(st.tuples(int64s, int64s), max_size=4)
partition_fields = st.builds(
    Fields, int32s, int16s, int64s, int64s, int64s, aborted_lists, int32s, st.none() | st.binary(max_size=80)
)
topic_lists: st.SearchStrategy[Topics] = st.lists(
    st.tuples(names, st.lists(partition_fields, max_size=4)), max_size=4
)

ONE = Fields(7, 0, 100, 90, 10, [(1, 2), (3, 4)], -1, b"batches")
ONE_ANSWER: Topics = [("orders", [ONE])]


def by_topic(wanted: Sequence[WantedPartition]) -> list[tuple[str, list[WantedPartition]]]:
    """Topics in the order of their first partition."""
    topics = dict.fromkeys(one.topic for one in wanted)
    return [(topic, [one for one in wanted if one.topic == topic]) for topic in topics]


def with_epochs(
    kind: type[FetchRequestStruct], wait_ms: int, max_bytes: int, wanted: Sequence[WantedPartition]
) -> FetchRequestStruct:
    """A request by aiokafka's schema of a version that has epochs. aiokafka's own requests never name one."""
    topics = [
        (topic, [(one.partition, one.epoch, one.next_offset, NO_LOG_START, one.max_bytes) for one in found])
        for topic, found in by_topic(wanted)
    ]
    rack = [""] if kind is FetchRequest_v11 else []
    return kind(
        CONSUMER, wait_ms, MIN_BYTES, max_bytes, READ_COMMITTED, NO_SESSION, FINAL_EPOCH, topics, [], *rack
    )


def of_aiokafka(wait_ms: int, max_bytes: int, wanted: Sequence[WantedPartition]) -> FetchRequest:
    topics = [
        (topic, [(one.partition, one.next_offset, one.max_bytes) for one in found])
        for topic, found in by_topic(wanted)
    ]
    return FetchRequest(wait_ms, MIN_BYTES, max_bytes, READ_COMMITTED, topics)


def on_the_wire(request: FetchRequestStruct, correlation_id: int = 1, client_id: str = "c") -> bytes:
    return request.build_request_header(correlation_id, client_id).encode() + request.encode()


def encoded(
    kind: type[Response], topics: Topics, code: int = 0, session: int = 0, throttle_ms: int = 0
) -> bytes:
    """A response as aiokafka's schema of its version encodes it."""
    schema: Any = kind.SCHEMA
    inner = schema.fields[-1].array_of.fields[-1].array_of.names
    values = {
        "throttle_time_ms": throttle_ms,
        "error_code": code,
        "session_id": session,
        "topics": [
            (topic, [[getattr(fields, name) for name in inner] for fields in partitions])
            for topic, partitions in topics
        ],
    }
    return kind(**{name: values[name] for name in schema.names}).encode()


def facts(topics: Topics) -> list[PartitionAnswer]:
    return [fields.answer(topic) for topic, partitions in topics for fields in partitions]


def read_by_aiokafka(data: bytes) -> list[PartitionAnswer] | None:
    """The facts that aiokafka's schema finds. None: this is no answer, or a topic of it has no name, which
    the schema would allow and Kafka does not."""
    try:
        response: Any = FetchResponse_v11.decode(BytesIO(data))
    except WRONG:
        return None
    topics = response.topics or []
    if any(topic is None for topic, _ in topics):
        return None
    return facts([(topic, [Fields(*fields) for fields in partitions or ()]) for topic, partitions in topics])


def read(data: bytes) -> list[PartitionAnswer] | None:
    """The same by the code under test. An error of another kind is a defect."""
    try:
        return AnswerV11.decode(data).answers
    except WRONG:
        return None


# Requests


@given(int32s, int32s, wanted_lists, int32s, names)
def test_request_and_header_have_the_bytes_of_aiokafka_s(
    wait_ms: int, max_bytes: int, wanted: list[WantedPartition], correlation_id: int, client_id: str
) -> None:
    request = Fetch(wait_ms, max_bytes, wanted).build(FetchRequest_v11)
    assert isinstance(request, FetchV11)
    expected = with_epochs(FetchRequest_v11, wait_ms, max_bytes, wanted)
    assert on_the_wire(request, correlation_id, client_id) == on_the_wire(expected, correlation_id, client_id)


@pytest.mark.parametrize("kind", [*OLDER, FetchRequest_v11])
@given(wait_ms=int32s, max_bytes=int32s, wanted=wanted_lists)
def test_request_without_epochs_is_that_which_aiokafka_would_send(
    kind: type[FetchRequestStruct], wait_ms: int, max_bytes: int, wanted: list[WantedPartition]
) -> None:
    wanted = [one._replace(epoch=ANY_EPOCH) for one in wanted]
    request = Fetch(wait_ms, max_bytes, wanted).build(kind)
    assert isinstance(request, kind)
    assert on_the_wire(request) == on_the_wire(of_aiokafka(wait_ms, max_bytes, wanted).build(kind))


@pytest.mark.parametrize("kind", OLDER)
@given(wait_ms=int32s, max_bytes=int32s, wanted=wanted_lists)
def test_request_of_an_older_version_names_the_epochs_if_the_version_has_them(
    kind: type[FetchRequestStruct], wait_ms: int, max_bytes: int, wanted: list[WantedPartition]
) -> None:
    if kind.API_VERSION >= FIRST_WITH_EPOCHS:
        expected = with_epochs(kind, wait_ms, max_bytes, wanted)
    else:
        expected = of_aiokafka(wait_ms, max_bytes, wanted).build(kind)
    request = Fetch(wait_ms, max_bytes, wanted).build(kind)
    assert type(request) is kind
    assert on_the_wire(request) == on_the_wire(expected)


@pytest.mark.parametrize("newest", range(4, 18))
def test_broker_gets_the_newest_version_that_both_have(newest: int) -> None:
    request = Fetch(0, 1, []).prepare({FETCH_KEY: (4, newest)})
    versions = request.API_VERSION, request.RESPONSE_TYPE.API_VERSION
    assert versions == (min(newest, 11), min(newest, 11))
    assert isinstance(request, FetchV11) == issubclass(request.RESPONSE_TYPE, AnswerV11) == (newest >= 11)


# Answers


@given(topic_lists, int16s, int32s, int32s, int32s)
def test_answer_is_read_as_aiokafka_encodes_it(
    topics: Topics, code: int, session: int, throttle_ms: int, correlation_id: int
) -> None:
    data = encoded(FetchResponse_v11, topics, code, session, throttle_ms)
    header = struct.pack(">i", correlation_id)
    behind_header = BytesIO(header + data)
    request: Any = FetchV11(0, MIN_BYTES, 1, [])
    assert request.parse_response_header(behind_header).correlation_id == correlation_id
    assert request.parse_response_header(header).correlation_id == correlation_id
    for taken in (behind_header, BytesIO(data), data):
        answer = AnswerV11.decode(taken)
        assert answers_of(answer) == answer.answers == facts(topics)
        assert (answer.error_code, answer.throttle_time_ms) == (code, throttle_ms)
    assert read_by_aiokafka(data) == facts(topics)


@pytest.mark.parametrize("absent", [None, []])
def test_absent_topics_and_partitions_are_none(absent: list[Any] | None) -> None:
    for topics in (absent, [("orders", absent)]):
        assert AnswerV11.decode(FetchResponse_v11(0, 0, 0, topics).encode()).answers == []


@pytest.mark.parametrize("kind", OLDER)
@given(topics=topic_lists)
def test_answer_of_an_older_version_has_the_same_facts(
    kind: type[FetchRequestStruct], topics: Topics
) -> None:
    response = kind.RESPONSE_TYPE.decode(BytesIO(encoded(kind.RESPONSE_TYPE, topics)))
    assert answers_of(response) == facts(topics)


# Bytes that are no answer


@given(topic_lists, st.data())
def test_answer_that_is_cut_anywhere_is_refused(topics: Topics, data: st.DataObject) -> None:
    whole = encoded(FetchResponse_v11, topics)
    size = data.draw(st.integers(0, len(whole) - 1))
    for taken in (whole[:size], BytesIO(whole[:size])):
        with pytest.raises(WRONG):
            AnswerV11.decode(taken)
    behind_header = BytesIO(bytes(4) + whole[:size])
    behind_header.seek(4)
    with pytest.raises(WRONG):
        AnswerV11.decode(behind_header)


def test_answer_that_is_cut_after_any_byte_is_refused() -> None:
    whole = encoded(FetchResponse_v11, [*ONE_ANSWER, ("räume", [ONE, ONE])])
    for size in range(len(whole)):
        assert read(whole[:size]) is None, f"{size} of {len(whole)} bytes were taken for an answer"


@given(topic_lists, st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=6))
@example(ONE_ANSWER, [(14, 0xFF), (15, 0xFF)])  # the length of the topic's name is -1
@example(ONE_ANSWER, [(14, 0xFF), (15, 0xFA)])
def test_damaged_answer_is_refused_or_read_as_aiokafka_reads_it(
    topics: Topics, damages: list[tuple[int, int]]
) -> None:
    """So no data is shorter than it says, and none is made up."""
    damaged = bytearray(encoded(FetchResponse_v11, topics))
    for at, value in damages:
        damaged[at % len(damaged)] = value
    assert read(bytes(damaged)) == read_by_aiokafka(bytes(damaged))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_read_as_aiokafka_reads_them(data: bytes) -> None:
    assert read(data) == read_by_aiokafka(data)


@pytest.mark.parametrize("length", [-1, -2, -6, -20, -(2**15)])
def test_topic_without_a_name_is_refused(length: int) -> None:
    """A length below 0 must not lead back to bytes that were read: -6 would read the same topic for ever."""
    head = struct.pack(">ihii", 0, 0, 0, 3)
    data = head + struct.pack(">hi", 0, 0) + struct.pack(">hi", length, 0) + bytes(40)
    with pytest.raises(WRONG):
        AnswerV11.decode(data)


@pytest.mark.parametrize("count", [MOST, MOST // 2, 10_000])
@pytest.mark.parametrize(
    ("field", "at"), [("topics", 10), ("partitions", 22), ("aborted", 56), ("bytes", 96)]
)
def test_count_that_is_far_too_large_is_refused_at_once(field: str, at: int, count: int) -> None:
    damaged = bytearray(encoded(FetchResponse_v11, ONE_ANSWER))
    right = {"topics": 1, "partitions": 1, "aborted": 2, "bytes": 7}[field]
    assert struct.unpack_from(">i", damaged, at) == (right,), "the count is elsewhere"
    struct.pack_into(">i", damaged, at, count)
    tracemalloc.start()
    try:
        with pytest.raises(WRONG):
            AnswerV11.decode(bytes(damaged))
        assert tracemalloc.get_traced_memory()[1] < SMALL_BYTES
    finally:
        tracemalloc.stop()


# What aiokafka logs


@given(topic_lists, wanted_lists)
def test_requests_and_answers_can_be_logged(topics: Topics, wanted: list[WantedPartition]) -> None:
    answer = AnswerV11.decode(encoded(FetchResponse_v11, topics, code=3))
    assert "error_code=3" in repr(answer)
    request = Fetch(0, 1, wanted).build(FetchRequest_v11)
    assert repr(request).startswith("Fetch")
    for topic in {one.topic for one in wanted}:
        assert repr(topic) in repr(request)


def test_logged_answer_names_its_partitions_and_quotes_no_data() -> None:
    large = ONE._replace(message_set=b"secret" * 1_000)
    logged = repr(AnswerV11.decode(encoded(FetchResponse_v11, [("orders", [large])])))
    assert "orders-7" in logged
    assert "6000" in logged
    assert "secret" not in logged
