"""What a header block of an answer says, from gRPC servers and from what stands in front of them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.grpc_client.answers import MAX_QUOTED, Head, is_interim, read_end, read_head
from app.grpc_client.status import StatusCode, code_of_http

STATUS = (b":status", b"200")
CONTENT_TYPE = (b"content-type", b"application/grpc")

fields = st.lists(
    st.tuples(
        st.sampled_from(
            [b":status", b"content-type", b"grpc-status", b"grpc-message", b"grpc-encoding", b"x"]
        ),
        st.one_of(st.sampled_from([b"200", b"0", b"application/grpc", b"103"]), st.binary(max_size=12)),
    ),
    max_size=6,
).map(tuple)


@pytest.mark.parametrize(
    "content_type",
    [b"application/grpc", b"application/grpc+proto", b"Application/gRPC", b"application/grpc; charset=utf-8"],
)
def test_the_head_of_a_grpc_server_has_no_refusal(content_type: bytes) -> None:
    given_fields = (STATUS, (b"content-type", content_type))
    assert read_head(given_fields) == Head(given_fields, http_status=200)


def test_the_head_names_the_encoding_of_compressed_messages() -> None:
    assert read_head((STATUS, CONTENT_TYPE)).encoding == b"identity"
    assert read_head((STATUS, CONTENT_TYPE, (b"grpc-encoding", b"gzip"))).encoding == b"gzip"


def test_a_head_without_a_grpc_status_gets_its_code_of_the_http_status() -> None:
    for status in range(201, 600):
        head = read_head(((b":status", b"%d" % status), (b"content-type", b"text/html")))
        assert (head.code, head.http_status) == (code_of_http(status), status)
        assert str(status) in head.refusal


@pytest.mark.parametrize("status", [b"200", b"404", b"503"])
def test_a_grpc_status_counts_more_than_the_http_status(status: bytes) -> None:
    trailers_only = ((b":status", status), (b"grpc-status", b"7"), (b"grpc-message", b"not%20you"))
    assert not read_head(trailers_only).refusal
    end = read_end(trailers_only)
    assert (end.code, end.message) == (StatusCode.PERMISSION_DENIED, "not you")


@pytest.mark.parametrize("content_type", [b"text/html", b"", b"<" * 10_000, b"\xff\n"])
def test_an_answer_of_another_kind_is_refused_by_its_content_type(content_type: bytes) -> None:
    head = read_head((STATUS, (b"content-type", content_type)))
    assert head.code is StatusCode.UNKNOWN
    assert "content-type" in head.refusal
    assert head.refusal.isprintable()
    assert len(head.refusal) < 5 * MAX_QUOTED


@pytest.mark.parametrize(
    "status", [(), ((b":status", b""),), ((b":status", b"2000"),), ((b":status", b"ok!"),)]
)
def test_an_answer_without_an_http_status_is_refused(status: tuple[tuple[bytes, bytes], ...]) -> None:
    head = read_head((*status, CONTENT_TYPE))
    assert (head.code, head.http_status, bool(head.refusal)) == (StatusCode.INTERNAL, 0, True)


def test_trailers_without_a_status_are_unknown() -> None:
    end = read_end(((b"x-server", b"7"),))
    assert end.code is StatusCode.UNKNOWN
    assert "without a gRPC status" in end.message


def test_trailers_give_code_message_and_all_fields() -> None:
    given_fields = ((b"grpc-status", b"5"), (b"grpc-message", b"%e2%82%ac"), (b"x-server", b"7"))
    end = read_end(given_fields)
    assert (end.code, end.message, end.fields) == (StatusCode.NOT_FOUND, "€", given_fields)


@pytest.mark.parametrize(
    ("status", "interim"), [(b"100", True), (b"103", True), (b"200", False), (b"1", False)]
)
def test_only_informational_answers_are_interim(status: bytes, interim: bool) -> None:
    assert is_interim(((b":status", status), (b"x", b"100"))) == interim


@given(fields)
@example(((b":status", "²²²".encode("latin-1")),))  # digits that are no number
@example(((b":status", "٢٠٠".encode()),))
def test_any_fields_are_an_answer_or_a_refusal(given_fields: tuple[tuple[bytes, bytes], ...]) -> None:
    head, end = read_head(given_fields), read_end(given_fields)
    assert (head.code is StatusCode.OK) == (not head.refusal)
    assert head.refusal.isprintable()
    assert head.fields == end.fields == given_fields
    is_interim(given_fields)
