"""Servers for tests of the client: an honest one on `h2`, and scripts that send bytes of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded
from h2.settings import SettingCodes, Settings
from hpack import Encoder

from app.grpc_client import frames
from app.grpc_client.address import Address
from app.grpc_client.calls import Call, UnaryCall
from app.grpc_client.channel import Channel, ChannelOptions
from app.grpc_client.header_encoder import Field, Fields

HEAD = [(b":status", b"200"), (b"content-type", b"application/grpc")]
END = [(b"grpc-status", b"0")]
PREFACE_BYTES = len(frames.PREFACE)
TIMEOUT_S = 20.0
MAX_STREAMS = 1_000


ANSWER = frames.frame(frames.DATA, 0, 1, bytes(5))


def block(*fields: tuple[bytes, bytes]) -> bytes:
    return Encoder().encode(fields, huffman=False)


def head(stream_id: int, flags: int = frames.END_HEADERS) -> bytes:
    return frames.frame(frames.HEADERS, flags, stream_id, block(*HEAD))


def end(stream_id: int, *fields: tuple[bytes, bytes]) -> bytes:
    flags = frames.END_HEADERS | frames.END_STREAM
    return frames.frame(frames.HEADERS, flags, stream_id, block(*END, *fields))


@dataclass
class Wire:
    """A server's side of one connection. `frame` reads the client's next frame; `send` writes any bytes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def preface(self) -> None:
        assert await self.reader.readexactly(PREFACE_BYTES) == frames.PREFACE

    async def frame(self) -> tuple[int, int, int, bytes]:
        """Type, flags, stream and payload. Raises IncompleteReadError at the end."""
        header = await self.reader.readexactly(frames.HEADER_BYTES)
        high, low, kind, flags, stream_id = frames.HEADER.unpack(header)
        return kind, flags, stream_id, await self.reader.readexactly(high << 8 | low)

    async def request(self) -> int:
        """Waits until a request is whole; its stream."""
        while True:
            kind, flags, stream_id, _ = await self.frame()
            if kind == frames.DATA and flags & frames.END_STREAM:
                return stream_id

    async def start(self, settings: dict[int, int] | None = None) -> None:
        await self.preface()
        self.send(frames.settings(settings or {}))

    async def closed(self) -> list[tuple[int, int, int, bytes]]:
        """All frames until the client closes the connection."""
        seen = []
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                seen.append(await self.frame())
        return seen


Script = Callable[[Wire], Awaitable[None]]


async def honest(wire: Wire) -> None:
    """Answers each request with OK and an empty message."""
    connection = H2Connection(H2Configuration(client_side=False, header_encoding=None))
    allowed = {SettingCodes.MAX_CONCURRENT_STREAMS: MAX_STREAMS}
    connection.local_settings = Settings(client=False, initial_values=allowed)
    connection.initiate_connection()
    wire.send(connection.data_to_send())
    while data := await wire.reader.read(65_536):
        for event in connection.receive_data(data):
            if isinstance(event, DataReceived):
                connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, StreamEnded):
                connection.send_headers(event.stream_id, HEAD)
                connection.send_data(event.stream_id, bytes(5))
                connection.send_headers(event.stream_id, END, end_stream=True)
            elif isinstance(event, RequestReceived):
                pass
        wire.send(connection.data_to_send())


@dataclass
class Server:
    """`scripts` meet the first connections, one each; `honest` meets all later ones.

    Attributes:
        accepted: Connections so far.
        errors: What scripts raised.
    """

    scripts: Sequence[Script]
    accepted: int = 0
    port: int = 0
    errors: list[BaseException] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.accepted = self.accepted, self.accepted + 1
        script = self.scripts[number] if number < len(self.scripts) else honest
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await script(Wire(reader, writer))
            if writer.can_write_eof():
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has closed it, or the test is over
        except Exception as error:  # noqa: BLE001 - the test tells of it
            self.errors.append(error)
        finally:
            self.tasks.discard(task)
            writer.close()


@contextlib.asynccontextmanager
async def serving(*scripts: Script) -> AsyncIterator[Server]:
    server = Server(scripts)
    listener = await asyncio.start_server(server.on_connection, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        for task in list(server.tasks):
            task.cancel()
        await asyncio.gather(*server.tasks, return_exceptions=True)
    assert not server.errors, server.errors


@contextlib.asynccontextmanager
async def channel_to(port: int, options: ChannelOptions | None = None) -> AsyncIterator[Channel]:
    channel = Channel(Address.parse(f"127.0.0.1:{port}"), options)
    try:
        yield channel
    finally:
        await channel.close()


class Caller:
    """Makes unary calls and waits for their ends."""

    def __init__(self, channel: Channel, path: str = "/test.Service/Call") -> None:
        self.channel = channel
        self.fields: Fields = channel.method(path)

    def begin(
        self, message: bytes = b"", metadata: Sequence[Field] = (), timeout_s: float | None = TIMEOUT_S
    ) -> tuple[UnaryCall, asyncio.Future[UnaryCall]]:
        future: asyncio.Future[UnaryCall] = asyncio.get_running_loop().create_future()
        call = self.channel.unary(self.fields, message, metadata, timeout_s, future.set_result)
        assert not future.done()  # the end comes later, from the loop
        return call, future

    async def call(
        self, message: bytes = b"", metadata: Sequence[Field] = (), timeout_s: float | None = TIMEOUT_S
    ) -> UnaryCall:
        return await asyncio.wait_for(self.begin(message, metadata, timeout_s)[1], TIMEOUT_S + 5)

    async def recover(self) -> None:
        """Calls until the server answers, as a caller that pauses after a failure."""
        async with asyncio.timeout(TIMEOUT_S):
            while (await self.call()).code != 0:  # noqa: ASYNC110 - a backoff ends
                await asyncio.sleep(0.02)

    async def calls(self, count: int, message: bytes = b"", timeout_s: float = TIMEOUT_S) -> list[UnaryCall]:
        begun = [self.begin(message, timeout_s=timeout_s)[1] for _ in range(count)]
        return list(await asyncio.wait_for(asyncio.gather(*begun), TIMEOUT_S + 5))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():  # noqa: ASYNC110 - conditions of many kinds
            await asyncio.sleep(0.005)


def outcome(call: Call) -> tuple[str, str]:
    assert call.code is not None
    return call.code.name, call.message
