"""Status codes and messages, against gRPC's own tables and encoder."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.grpc_client.frames import ErrorCode
from app.grpc_client.status import StatusCode, code_of, code_of_http, code_of_reset, decode_message

# gRPC's document "http-grpc-status-mapping"
OF_HTTP = {
    400: "INTERNAL",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "UNIMPLEMENTED",
    429: "UNAVAILABLE",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "UNAVAILABLE",
}
# gRPC's document "PROTOCOL-HTTP2", HTTP2 Transport Mapping, Errors
OF_RESET = {
    ErrorCode.REFUSED_STREAM: "UNAVAILABLE",
    ErrorCode.CANCEL: "CANCELLED",
    ErrorCode.ENHANCE_YOUR_CALM: "RESOURCE_EXHAUSTED",
    ErrorCode.INADEQUATE_SECURITY: "PERMISSION_DENIED",
}
UNESCAPED = frozenset(range(0x20, 0x7F)) - {ord("%")}


def encoded(message: str) -> bytes:
    """What "PROTOCOL-HTTP2" says that a server sends."""
    return b"".join(bytes((b,)) if b in UNESCAPED else b"%%%02X" % b for b in message.encode())


def test_the_codes_are_grpc_s() -> None:
    assert {code.name: int(code) for code in StatusCode} == {
        code.name: code.value[0] for code in grpc.StatusCode
    }
    assert all(code_of(b"%d" % code) is code for code in StatusCode)


@given(st.one_of(st.binary(max_size=4), st.integers(17, 2**70).map(lambda number: b"%d" % number)))
@example(b"00")
@example(b" 0")
@example(b"-1")
@example(b"")
def test_a_status_that_is_no_code_of_grpc_is_unknown(status: bytes) -> None:
    known = {b"%d" % code for code in StatusCode}
    assert (code_of(status) is StatusCode.UNKNOWN) == (status not in known - {b"2"})


def test_an_http_status_gives_the_code_of_grpc_s_table() -> None:
    for status in range(600):
        assert code_of_http(status).name == OF_HTTP.get(status, "UNKNOWN")


def test_a_reset_gives_the_code_of_grpc_s_table() -> None:
    for code in ErrorCode:
        assert code_of_reset(code).name == OF_RESET.get(code, "INTERNAL")


@given(st.integers(len(ErrorCode), 2**32 - 1))
def test_a_reset_with_a_code_that_no_rfc_has_is_unknown(code: int) -> None:
    assert code_of_reset(code) is StatusCode.UNKNOWN


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example("%")
@example("100%25 sure")
@example("line\nline\r\ttab\0")
@example("größer als 5 € 🙂")
def test_a_message_comes_as_it_was_given_to_the_server(message: str) -> None:
    assert decode_message(encoded(message)) == message
    assert decode_message(message.encode()) == message or "%" in message  # a server that escapes nothing


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        (b"50%", "50%"),
        (b"50% off", "50% off"),
        (b"%zz", "%zz"),
        (b"%4", "%4"),
        (b"%%41", "%A"),
        (b"%e2%82%ac", "€"),  # small letters
        (b"%E2%82", "\ufffd"),
        (b"\xff", "\ufffd"),
        (b"a%FFb", "a\ufffdb"),
        (b"a+b", "a+b"),  # no form's code for a blank
    ],
)
def test_a_broken_message_is_shown_as_far_as_it_can_be(sent: bytes, shown: str) -> None:
    assert decode_message(sent) == shown


@given(st.binary(max_size=60))
def test_any_bytes_as_a_message_are_text(sent: bytes) -> None:
    decode_message(sent).encode()
