"""Stream receivers whose answers a test writes, and a sender that counts its results."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc import aio

from app.dispatch.push.call_result import CallResult
from app.dispatch.push.stream.client import METHOD, Sender, StreamTarget
from app.dispatch.push.stream.encoder import OutBatch
from app.dispatch.push.transport import StreamCall
from switchyard.v1.receiver_pb2 import DeliverRequest, DeliverResponse
from tests.dispatch.push.grpc_servers import ENOUGH_S, ReceiverAddress, listen, stream_channel

EOF: Any = aio.EOF  # type: ignore[attr-defined]


@dataclass(slots=True)
class StreamRecord:
    offset: int = 0
    value: bytes | None = b"v"
    key: bytes | None = None
    timestamp: int = 1_790_000_000_000
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


def rows(count: int, value: bytes = b"v") -> list[StreamRecord]:
    """Records with offsets from 0."""
    return [StreamRecord(offset, value) for offset in range(count)]


class ReceiverStream:
    """The receiver's end of a stream, written by hand."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.requests: list[DeliverRequest] = []

    async def request(self) -> DeliverRequest | None:
        """The next request; None at the end."""
        data = await self.context.read()
        if data is EOF:
            return None
        self.requests.append(DeliverRequest.FromString(data))
        return self.requests[-1]

    async def say(self, **fields: Any) -> None:
        """Sends a response."""
        await self.context.write(DeliverResponse(**fields).SerializeToString())

    async def accept(
        self, deliveries: int, size: int = 1 << 40, max_request_bytes: int = 1 << 30, features: int = 0
    ) -> None:
        """Reads Open, and gives credit."""
        request = await self.request()
        assert request is not None
        assert request.HasField("open")
        await self.say(
            accept={"max_request_bytes": max_request_bytes, "features": features},
            credit={"deliveries": deliveries, "bytes": size},
        )

    async def messages(self, count: int) -> list[int]:
        """The offsets of the next `count` messages."""
        offsets: list[int] = []
        while len(offsets) < count:
            request = await self.request()
            assert request is not None, f"the stream ended after {len(offsets)} of {count} messages"
            for batch in request.batches:
                offsets += [batch.base_offset + message.offset_delta for message in batch.messages]
        return offsets


Script = Callable[[ReceiverStream], Awaitable[None]]


async def start_stream_server(script: Script, port: int = 0, max_bytes: int = -1) -> tuple[aio.Server, int]:
    """A server that runs `script` for every stream, and its port."""

    async def behave(_: Any, context: Any) -> None:
        await script(ReceiverStream(context))

    return await listen(METHOD, grpc.stream_stream_rpc_method_handler(behave), port, max_bytes)


class CountedChannel:
    """A channel for streams, which counts those of its kind that are open."""

    def __init__(self, port: int, opened: list[CountedChannel]) -> None:
        self._channel = stream_channel(f"127.0.0.1:{port}", METHOD)
        self._opened = opened
        opened.append(self)

    def open(self) -> StreamCall:
        return self._channel.open()

    async def close(self) -> None:
        self._opened.remove(self)
        await self._channel.close()


class RecordingSender:
    """A target, and everything that it reported. `channels` are open."""

    def __init__(
        self,
        port: int,
        place: ReceiverAddress | None = None,
        *,
        timeout_s: float = ENOUGH_S,
        streams: int = 1,
        max_age_s: float = 0.0,
    ) -> None:
        self.place = place or ReceiverAddress(start_stream_server)
        self.reported: Counter[tuple[int, int]] = Counter()  # by batch and index
        self.results: dict[tuple[int, int], CallResult] = {}
        self.lost: list[CallResult] = []
        self.away = 0  # how often all streams were lost
        self.expected = 0
        self.batches: list[OutBatch] = []
        self.channels: list[CountedChannel] = []
        self.target = StreamTarget(
            lambda: CountedChannel(port, self.channels),
            Sender("billing", "orders", "w"), timeout_s=timeout_s,
            on_room=lambda: None, on_lost=self._on_lost, streams=streams,
            max_age_s=max_age_s,
        )  # fmt: skip

    def _on_lost(self, result: CallResult, is_whole: bool) -> None:
        self.lost.append(result)
        self.away += is_whole

    def send(self, records: list[StreamRecord], longest_s: float = 0.0, **fields: Any) -> OutBatch:
        """Sends one batch."""
        number = len(self.batches)

        def on_results(start: int, end: int, result: Any) -> None:
            for index in range(start, end):
                self.reported[number, index] += 1
                self.results[number, index] = result

        made = {"partition": 0, "retry_count": 0, "attempt": 1, **fields}
        batch = OutBatch("orders", records=records, on_results=on_results, **made)
        self.batches.append(batch)
        self.expected += len(records)
        self.target.send(batch, None, longest_s)
        assert not any(key[0] == number for key in self.reported), "reported from within `send`"
        return batch

    async def until(self, ready: Callable[[], object]) -> None:
        async with asyncio.timeout(ENOUGH_S):
            while not ready():  # noqa: ASYNC110 - no event reports the condition
                await asyncio.sleep(0.002)

    async def connected(self) -> None:
        """Connects, and waits for room."""
        self.target.connect()
        await self.until(lambda: self.target.room)

    async def all_reported(self) -> None:
        """Waits until every sent message has a result; asserts that none has two."""
        await self.until(lambda: len(self.reported) >= self.expected)
        assert len(self.reported) == self.expected
        assert set(self.reported.values()) <= {1}

    def codes(self, batch: int = 0) -> list[int]:
        """The status codes of a batch's messages, in order; -1 for those without a result."""
        count = len(self.batches[batch].records)
        results = [self.results.get((batch, index)) for index in range(count)]
        return [-1 if result is None else result.code for result in results]


async def take_everything(stream: ReceiverStream) -> None:
    """Acknowledges in order, with endless credit."""
    await stream.accept(1 << 40)
    done = 0
    while (request := await stream.request()) is not None:
        count = sum(len(batch.messages) for batch in request.batches)
        done += count
        if count:
            await stream.say(results={"acknowledged": [{"start": done - count, "end": done}]})
        if request.drain:
            return


async def hold(_: ReceiverStream) -> None:
    """Sends nothing more."""
    await asyncio.sleep(ENOUGH_S)


@contextlib.asynccontextmanager
async def streaming(
    script: Script, *, timeout_s: float = ENOUGH_S, max_bytes: int = -1, **streams: Any
) -> AsyncIterator[RecordingSender]:
    """A sender to a server that runs `script`. `streams`: see `RecordingSender`."""
    place = ReceiverAddress(start_stream_server, max_bytes=max_bytes)
    await place.begin(script)
    sender = RecordingSender(place.port, place, timeout_s=timeout_s, **streams)
    try:
        yield sender
    finally:
        await sender.target.close()
        await place.end()
        assert sender.channels == []
