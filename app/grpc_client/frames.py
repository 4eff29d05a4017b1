"""HTTP/2 frames: the bytes of those that a client sends, and the checks of those that it gets.

Source: RFC 9113, sections 4, 6 and 7.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER = Struct(">HBBBL")  # two high and one low byte of the length, type, flags, stream
HEADER_BYTES = 9
MIN_FRAME_SIZE = 16_384  # what each peer takes; the settings of a peer may allow more
MAX_FRAME_SIZE = 2**24 - 1
MAX_WINDOW = 2**31 - 1
MAX_STREAM_ID = 2**31 - 1
DEFAULT_WINDOW = 65_535

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    range(10)
)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

HEADER_TABLE_SIZE = 1
ENABLE_PUSH = 2
MAX_CONCURRENT_STREAMS = 3
INITIAL_WINDOW_SIZE = 4
MAX_FRAME_SIZE_ID = 5
MAX_HEADER_LIST_SIZE = 6

_SETTING = Struct(">HL")
_LONG = Struct(">L")
_TWO_LONGS = Struct(">LL")
_PRIORITY_BYTES = 5
PING_BYTES = 8


class ErrorCode(IntEnum):
    """Why a peer ends a stream or a connection (RFC 9113, section 7)."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    CONNECT_ERROR = 0xA
    ENHANCE_YOUR_CALM = 0xB
    INADEQUATE_SECURITY = 0xC
    HTTP_1_1_REQUIRED = 0xD


def code_name(code: int) -> str:
    """The name of an error code; of one that no RFC has, its number."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error code {code}"


class ConnectionFault(Exception):
    """The peer broke HTTP/2 so that the connection must end. `code` tells it to the peer."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def header(kind: int, flags: int, stream_id: int, size: int) -> bytes:
    """What comes before a payload of so many bytes."""
    return HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes) -> bytes:
    return header(kind, flags, stream_id, len(payload)) + payload


def settings(values: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in values.items()))


SETTINGS_ACK = frame(SETTINGS, ACK, 0, b"")


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, _LONG.pack(increment))


def rst_stream(stream_id: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _LONG.pack(code))


def ping(opaque: bytes, flags: int = 0) -> bytes:
    return frame(PING, flags, 0, opaque)


def goaway(last_stream_id: int, code: ErrorCode, reason: str = "") -> bytes:
    return frame(GOAWAY, 0, 0, _TWO_LONGS.pack(last_stream_id, code) + reason.encode()[:1_000])


def headers(stream_id: int, block: bytes, max_frame_size: int) -> bytes:
    """A HEADERS frame, and CONTINUATION frames when the block is larger than one. The stream stays open."""
    if len(block) <= max_frame_size:
        return frame(HEADERS, END_HEADERS, stream_id, block)
    parts = [block[at : at + max_frame_size] for at in range(0, len(block), max_frame_size)]
    last = len(parts) - 1
    return b"".join(
        frame(HEADERS if at == 0 else CONTINUATION, END_HEADERS if at == last else 0, stream_id, part)
        for at, part in enumerate(parts)
    )


def unpadded(flags: int, payload: bytes, *, may_have_priority: bool = False) -> bytes:
    """What a DATA or HEADERS frame carries. Raises ConnectionFault."""
    begin, end = 0, len(payload)
    if flags & PADDED:
        if not payload:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a padded frame is empty")
        begin, end = 1, end - payload[0]
    if may_have_priority and flags & WITH_PRIORITY:
        begin += _PRIORITY_BYTES
    if begin > end:
        raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "a frame's padding is longer than the frame")
    return payload[begin:end]


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """Identifiers and values of a SETTINGS frame, in its order. Raises ConnectionFault."""
    if len(payload) % _SETTING.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a SETTINGS frame of {len(payload)} bytes")
    found = list(_SETTING.iter_unpack(payload))
    for name, value in found:
        if name == INITIAL_WINDOW_SIZE and value > MAX_WINDOW:
            raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE is {value}")
        if name == MAX_FRAME_SIZE_ID and not MIN_FRAME_SIZE <= value <= MAX_FRAME_SIZE:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_MAX_FRAME_SIZE is {value}")
        if name == ENABLE_PUSH and value:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH of a server is {value}")
    return found


def parse_long(kind: str, payload: bytes) -> int:
    """The number that RST_STREAM and WINDOW_UPDATE carry. Raises ConnectionFault."""
    if len(payload) != _LONG.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a {kind} frame of {len(payload)} bytes")
    number: int = _LONG.unpack(payload)[0]
    return number


def parse_goaway(payload: bytes) -> tuple[int, int, bytes]:
    """The last stream that the peer processed, its error code and its words. Raises ConnectionFault."""
    if len(payload) < _TWO_LONGS.size:
        raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a GOAWAY frame of {len(payload)} bytes")
    last, code = _TWO_LONGS.unpack_from(payload)
    return last & MAX_STREAM_ID, code, payload[_TWO_LONGS.size :]
