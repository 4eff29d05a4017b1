"""The sample receiver behaves as each message asks, and its journal lists the actual deliveries."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.dispatch.push.metadata import MetadataTemplate
from tests.dispatch.push.grpc_servers import ENOUGH_S, METHOD, CountingCaller, metadata_of, unary_target

OK, UNKNOWN, RESOURCE_EXHAUSTED, FAILED_PRECONDITION = 0, 2, 8, 9


class Sample:
    """A sample receiver in a process of its own."""

    def __init__(self, journal: Path) -> None:
        self.journal = journal
        self._offset = 0

    async def start(self, *arguments: str) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "app.dev.sample_receiver", "--group", "billing", "--topic", "orders",
            "--topic", "refunds", "--journal", str(self.journal), *arguments, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.started = json.loads(await self.process.stdout.readline())
        self.call = CountingCaller(unary_target(self.started["address"], METHOD))

    async def stop(self, number: int = signal.SIGTERM) -> int:
        await self.call.target.close()
        self.process.send_signal(number)
        async with asyncio.timeout(ENOUGH_S):
            return await self.process.wait()

    async def deliver(self, body: Any) -> tuple[int, str | None]:
        """Delivers a message; its status and action."""
        self._offset += 1
        value = body if isinstance(body, bytes) else json.dumps(body).encode()
        metadata = metadata_of(MetadataTemplate("orders", "billing", 3), self._offset, None, [], 0, 1, 2)
        result = await self.call(value, metadata)
        return result.code, result.action

    def lines(self) -> list[dict[str, Any]]:
        """The entries of the journal."""
        return [json.loads(line) for line in self.journal.read_text().splitlines()]


@pytest.fixture
async def sample(tmp_path: Path) -> AsyncIterator[Sample]:
    receiver = Sample(tmp_path / "journal.jsonl")
    yield receiver
    if receiver.process.returncode is None:
        await receiver.stop(signal.SIGKILL)


async def test_every_message_gets_the_answer_that_it_asks_for_and_is_journaled(sample: Sample) -> None:
    await sample.start()
    assert sample.started["pid"] == sample.process.pid

    bodies: list[Any] = [
        {"id": "a"},
        {"id": "b", "behaviour": "slow", "ms": 1},
        {"id": "c", "behaviour": "poison"},
        {"id": "d", "behaviour": "retryable", "fails": 2},
        {"id": "d", "behaviour": "retryable", "fails": 2},
        {"id": "d", "behaviour": "retryable", "fails": 2},
        {"id": "e", "behaviour": "crash"},
        {"id": "e", "behaviour": "crash"},
        b"\xff no JSON",
        [],
    ]
    answers = [await sample.deliver(body) for body in bodies]

    retry, stash = (RESOURCE_EXHAUSTED, "Retry"), (FAILED_PRECONDITION, "Stash")
    assert answers == [
        (OK, None), (OK, None), stash, retry, retry, (OK, None), (UNKNOWN, None), (OK, None), stash, stash,
    ]  # fmt: skip
    journaled = [(line["id"], line["outcome"]) for line in sample.lines()]
    assert journaled == [
        ("a", "ok"), ("b", "ok"), ("c", "poison"), ("d", "retryable"), ("d", "retryable"), ("d", "ok"),
        ("e", "crash"), ("e", "ok"), ("", "poison"), ("", "poison"),
    ]  # fmt: skip
    first = sample.lines()[0]
    assert {name: first[name] for name in ("topic", "partition", "offset", "retry_count", "attempt")} == {
        "topic": "orders", "partition": 3, "offset": 1, "retry_count": 1, "attempt": 2,
    }  # fmt: skip
    assert await sample.stop() == 0


async def test_the_journal_has_every_answered_delivery_even_after_kill_9_and_continues(
    sample: Sample,
) -> None:
    await sample.start()
    answers = await asyncio.gather(*(sample.deliver({"id": str(number)}) for number in range(200)))
    assert await sample.stop(signal.SIGKILL) == -signal.SIGKILL
    assert answers == [(OK, None)] * 200
    assert sorted(int(line["id"]) for line in sample.lines()) == list(range(200))

    await sample.start()
    await sample.deliver({"id": "more"})

    assert len(sample.lines()) == 201
    assert sample.lines()[-1]["id"] == "more"


@pytest.mark.parametrize("arguments", [["--instant"], ["--instant", "--latency-ms", "5"]])
async def test_the_instant_receiver_accepts_every_message_without_a_journal(
    sample: Sample, arguments: list[str]
) -> None:
    await sample.start(*arguments)

    assert await sample.deliver(b"anything") == (OK, None)
    assert not sample.journal.exists()


async def test_sigterm_lets_a_message_in_progress_end(sample: Sample) -> None:
    await sample.start()
    await sample.deliver({"id": "first"})  # connected: later messages arrive in the order of the calls
    call = asyncio.create_task(sample.deliver({"id": "a", "behaviour": "slow", "ms": 1500}))
    await asyncio.sleep(0)  # the call has started
    for name in ("b", "c", "d"):  # behind it on the same connection, so that the slow message is in progress
        assert await sample.deliver({"id": name}) == (OK, None)
    sample.process.send_signal(signal.SIGTERM)

    assert await call == (OK, None)
    async with asyncio.timeout(ENOUGH_S):
        assert await sample.process.wait() == 0
    await sample.call.target.close()
