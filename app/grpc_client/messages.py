"""gRPC's messages within a stream of bytes: a byte that says whether it is compressed, its size, the message.

Source: gRPC's "PROTOCOL-HTTP2" and "compression".
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from struct import Struct

from app.grpc_client.status import StatusCode

PREFIX = Struct(">BL")
PREFIX_BYTES = 5
ACCEPTED_ENCODINGS = b"identity,deflate,gzip"
_WINDOW_BITS = {b"gzip": zlib.MAX_WBITS | 16, b"deflate": zlib.MAX_WBITS}


class MessageFault(Exception):
    """A message that cannot be read. It ends its call with `code`, not the connection."""

    def __init__(self, code: StatusCode, reason: str, *, is_too_large: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.is_too_large = is_too_large


def prefixed(message: bytes) -> bytes:
    return PREFIX.pack(0, len(message)) + message


class MessageReader:
    """Puts the messages of one stream together. `max_bytes` bounds one message, also decompressed."""

    __slots__ = ("_buffer", "_encoding", "_max_bytes")

    def __init__(self, max_bytes: int, encoding: bytes = b"identity") -> None:
        self._max_bytes = max_bytes
        self._encoding = encoding
        self._buffer = bytearray()  # a list of parts would take many times the bytes of small parts

    @property
    def is_amid_message(self) -> bool:
        return bool(self._buffer)

    def feed(self, data: bytes) -> Iterable[bytes]:
        """The messages that are whole now. Raises MessageFault, after the messages before the fault."""
        if not self._buffer and len(data) >= PREFIX_BYTES:
            # Nearly each DATA frame is one whole message.
            flag, size = PREFIX.unpack_from(data)
            if not flag and size == len(data) - PREFIX_BYTES and size <= self._max_bytes:
                return (data[PREFIX_BYTES:],)
        self._buffer += data
        return self._take()

    def _take(self) -> Iterator[bytes]:
        buffer, at = self._buffer, 0
        while len(buffer) - at >= PREFIX_BYTES:
            begin = at + PREFIX_BYTES
            end = begin + self._size(at)
            if end > len(buffer):
                break
            message = bytes(buffer[begin:end])
            yield self._decompressed(message) if buffer[at] else message
            at = end
        del buffer[:at]

    def _size(self, at: int) -> int:
        flag, size = PREFIX.unpack_from(self._buffer, at)
        if flag > 1:
            raise MessageFault(StatusCode.INTERNAL, f"a message's first byte is {flag}, not 0 or 1")
        if size > self._max_bytes:
            raise self._too_large(f"{size} bytes")
        return int(size)

    def _decompressed(self, message: bytes) -> bytes:
        bits = _WINDOW_BITS.get(self._encoding)
        if bits is None:
            name = self._encoding[:50].decode("ascii", "replace")
            raise MessageFault(StatusCode.INTERNAL, f"a message is compressed, but grpc-encoding is {name!r}")
        reader = zlib.decompressobj(bits)
        try:
            whole = reader.decompress(message, self._max_bytes + 1)
        except zlib.error as error:
            raise MessageFault(StatusCode.INTERNAL, f"a compressed message is broken: {error}") from error
        if len(whole) > self._max_bytes:
            raise self._too_large("more, decompressed")
        if not reader.eof:
            raise MessageFault(StatusCode.INTERNAL, "a compressed message ends too early")
        if reader.unused_data:
            raise MessageFault(StatusCode.INTERNAL, "a compressed message has bytes after its end")
        return whole

    def _too_large(self, size: str) -> MessageFault:
        reason = f"the limit for an answer's message is {self._max_bytes} bytes, and it has {size}"
        return MessageFault(StatusCode.RESOURCE_EXHAUSTED, reason, is_too_large=True)
