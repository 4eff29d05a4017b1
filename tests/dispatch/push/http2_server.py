"""A gRPC server written by hand, for answers that gRPC's own servers do not give."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

DATA, HEADERS, SETTINGS, PING = 0, 1, 4, 6
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE_BYTES = 24
HEAD = ((b":status", b"200"), (b"content-type", b"application/grpc"))


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """RFC 9113, 4.1."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _headers(*pairs: tuple[bytes, bytes]) -> bytes:
    """RFC 7541, 6.2.2: literals that the peer need not remember."""
    return b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(text)]) + text for name, text in pairs
    )  # fmt: skip


@contextlib.asynccontextmanager
async def ending_with(
    *trailers: tuple[bytes, bytes],
    first: bytes | None = None,
    head: Sequence[tuple[bytes, bytes]] = HEAD,
) -> AsyncIterator[int]:
    """The port of a server that ends each call with these trailers, after the message `first` if any."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(PREFACE_BYTES)
        writer.write(_frame(SETTINGS, 0, 0))
        while True:
            frame = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(frame[:3], "big"))
            kind, flags, stream = frame[3], frame[4], int.from_bytes(frame[5:], "big")
            if kind in {SETTINGS, PING} and not flags & ACK:
                writer.write(_frame(kind, ACK, 0, payload if kind == PING else b""))
            if kind != HEADERS:
                continue
            if first is None:
                writer.write(_frame(HEADERS, END_HEADERS | END_STREAM, stream, _headers(*head, *trailers)))
                continue
            writer.write(_frame(HEADERS, END_HEADERS, stream, _headers(*head)))
            writer.write(_frame(DATA, 0, stream, b"\0" + len(first).to_bytes(4, "big") + first))
            writer.write(_frame(HEADERS, END_HEADERS | END_STREAM, stream, _headers(*trailers)))

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1")
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
