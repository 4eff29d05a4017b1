"""The soak's receiver: it fails as the plan draws, and writes a line to the journal for each thing that it
does.

    python -m tests.system.soak.receiver --seed 7 --journal j.jsonl --group soak --topic orders --port 4711

SIGUSR1 makes it unavailable (UNAVAILABLE), SIGUSR2 overloaded (RESOURCE_EXHAUSTED), both until SIGURG. Over
the stream contract either cuts the open streams.

A delivery has two lines: `start` when it arrives, and its outcome, written before the answer is given. The
journal is therefore complete whichever process is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import orjson

from switchyard.receiver import Message, Receiver, Retry, Skip, Stash, Verdict
from switchyard.receiver.stream_service import StreamSide
from switchyard.receiver.unary_service import UnarySide
from tests.system.soak.plan import Draw, Fault, draw

VERDICTS: dict[Fault, Verdict] = {
    Fault.RETRY: Retry(), Fault.STASH: Stash("the plan says so"), Fault.SKIP: Skip(),
}  # fmt: skip
ENDS = {
    Fault.RETRY: "retry", Fault.RETRY_AFTER: "retry", Fault.STASH: "stash", Fault.SKIP: "skip",
    Fault.RAISE: "raise",
}  # fmt: skip


class PlannedFailure(RuntimeError):
    """The handler's failure, as the plan draws it."""


class Faults:
    """The handler of every topic."""

    def __init__(self, seed: int, journal: Path) -> None:
        self._seed = seed
        self._file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._numbers = itertools.count()

    async def handle(self, message: Message) -> Verdict:
        """Handles one delivery."""
        name = message.value.decode()
        drawn = draw(self._seed, name, message.attempt)
        number = f"{os.getpid()}-{next(self._numbers)}"
        start = {
            "d": number, "id": name, "key": (message.key or b"").decode(), "partition": message.partition,
            "offset": message.offset, "attempt": message.attempt, "retries": message.retry_count,
        }  # fmt: skip
        self._note("start", start)
        try:
            await self._wait(drawn)
        except asyncio.CancelledError:
            self._note("canceled", {"d": number})
            raise
        self._note(ENDS.get(drawn.fault, "ok"), {"d": number})
        if drawn.fault is Fault.RAISE:
            raise PlannedFailure(name)
        if drawn.fault is Fault.RETRY_AFTER:
            return Retry(after=drawn.after_s)
        return VERDICTS.get(drawn.fault)

    @staticmethod
    async def _wait(drawn: Draw) -> None:
        if drawn.fault is Fault.HANG:
            await asyncio.Event().wait()
        elif drawn.wait_s:
            await asyncio.sleep(drawn.wait_s)

    def _note(self, what: str, fields: dict[str, Any]) -> None:
        line = {"what": what, "at_ms": time.time_ns() / 1e6, **fields}
        os.write(self._file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


class UnreliableReceiver(Receiver):
    """A receiver that refuses calls and cuts streams while a burst lasts."""

    def __init__(self, port: int) -> None:
        super().__init__(port=port)
        self.burst: grpc.StatusCode | None = None
        self._cut = asyncio.Event()
        stream = self._stream
        assert stream is not None
        self._unary = _RefusingCalls(self)
        stream.handler = grpc.stream_stream_rpc_method_handler(self._stream_behaviour(stream))

    def set_burst(self, burst: grpc.StatusCode | None) -> None:
        """Starts a burst, or ends it with None."""
        self.burst = burst
        if burst is not None:
            self._cut.set()
            self._cut = asyncio.Event()

    def _stream_behaviour(self, stream: StreamSide) -> Any:
        async def behave(request: Any, context: Any) -> None:
            if self.burst is None:
                serving = asyncio.ensure_future(stream._deliver(request, context))
                cut = asyncio.ensure_future(self._cut.wait())
                try:
                    await asyncio.wait((serving, cut), return_when=asyncio.FIRST_COMPLETED)
                    if not cut.done():
                        await serving
                        return
                finally:
                    cut.cancel()
                    serving.cancel()
                await asyncio.wait((serving,))
            await context.abort(self.burst or grpc.StatusCode.UNAVAILABLE, "a burst, as planned")

        return behave


class _RefusingCalls(UnarySide):
    def __init__(self, receiver: UnreliableReceiver) -> None:
        super().__init__({})
        self._receiver = receiver

    def _handler_of(self, route: Any) -> Any:
        behave = super()._handler_of(route)

        async def refuse_in_burst(value: bytes, context: Any) -> bytes:
            if self._receiver.burst is not None:
                await context.abort(self._receiver.burst, "a burst, as planned")
            answer: bytes = await behave(value, context)
            return answer

        return refuse_in_burst


def main() -> None:
    """Serves until SIGTERM."""
    import uvloop

    parser = argparse.ArgumentParser(prog="python -m tests.system.soak.receiver", description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic", action="append", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()

    async def serve() -> None:
        receiver = UnreliableReceiver(options.port)
        faults = Faults(options.seed, options.journal)
        for topic in options.topic:
            receiver.on(topic=topic, group=options.group)(faults.handle)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, receiver.set_burst, grpc.StatusCode.UNAVAILABLE)
        loop.add_signal_handler(signal.SIGUSR2, receiver.set_burst, grpc.StatusCode.RESOURCE_EXHAUSTED)
        loop.add_signal_handler(signal.SIGURG, receiver.set_burst, None)

        def started(port: int) -> None:
            sys.stdout.write(json.dumps({"address": f"{receiver.host}:{port}", "pid": os.getpid()}) + "\n")
            sys.stdout.flush()

        await receiver.serve(started)

    uvloop.run(serve())


if __name__ == "__main__":
    main()
