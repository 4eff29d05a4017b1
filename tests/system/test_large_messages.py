"""Messages of 15 MB that compress to a few kB pass through retry topics, dead letters and merges.

One of two workers is killed. Each message arrives as it was produced, and none as a null.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import orjson
import pytest

from app.cli.client import EXIT_PARTIAL
from app.dev.demo.stage import DemoStage, Process, wait_until, workload
from app.dev.demo.traffic import create_topic
from switchyard.receiver import Message
from tests.kafka.conftest import bound, connected, delete_before
from tests.system.fleet import run_command, start_workers
from tests.system.receiver_thread import ReceiverThread
from tests.system.records import NewRecord, dead_letters, send_records

pytestmark = pytest.mark.system

CLUSTER, GROUP = "east-aggregate", "billing"
LARGE_BYTES = 15_000_000  # the SDK's receivers take 16 MiB
SMALL = 200
SETTLE_S = 120.0


def large(key: str) -> bytes:
    return key.encode() * (LARGE_BYTES // len(key))


class Deployment(ReceiverThread):
    """A receiver in this process that fails large messages until `fails` is False."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic, GROUP)
        self.fails = True
        self.taken: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.wrong: list[str] = []

    def handle(self, message: Message) -> None:
        """Handles one delivery."""
        key = (message.key or b"").decode()
        is_large = key.startswith("large")
        if message.value != (large(key) if is_large else key.encode()):
            self.wrong.append(key)
        if is_large and self.fails:
            self.failed[key] += 1
            raise RuntimeError("not now")
        self.taken[key] += 1


def produce(bootstrap: str, topic: str, keys: list[str]) -> None:
    records = [
        NewRecord(large(key) if key.startswith("large") else key.encode(), key.encode()) for key in keys
    ]
    send_records(bootstrap, topic, records, compression_type="gzip", max_request_size=2 * LARGE_BYTES)


async def limit_batches(most_bytes: int, bootstrap: str, *topics: str) -> None:
    """Limits these topics to batches of this many bytes."""
    async with connected(bootstrap) as client:
        await bound(client, most_bytes, *topics)


async def empty(bootstrap: str, topic: str, partitions: int) -> None:
    """Deletes all records of a topic."""
    async with connected(bootstrap) as client:
        for partition in range(partitions):
            await delete_before(client, topic, -1, partition)


def switchyard(worker: Process, *arguments: str) -> tuple[int, str]:
    """A command's exit code, and what it prints."""
    ended = run_command(worker, *arguments)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.deep(minutes=0.8)
def test_large_messages_pass_through_retries_dead_letters_and_merges_unchanged(
    stage: DemoStage, topic_name: str
) -> None:
    bootstrap, topic = stage.yard.bootstrap(CLUSTER), topic_name
    name, queue = f"{GROUP}/{topic}", f"{topic}__{GROUP}__dlq"
    asyncio.run(create_topic(bootstrap, topic, 2))

    def letters() -> dict[str, tuple[bytes | None, str]]:
        return dead_letters(bootstrap, topic, GROUP)

    def merge(worker: Process) -> tuple[int, str]:
        return switchyard(worker, "dlq", "merge", name, "--execute", "--yes", "-o", "json")

    with Deployment(topic).serving() as deployment:
        first, second = start_workers(stage)
        spec = {"retry": [{"delay": "2s", "attempts": 1}], "target": {"timeout": "30s"}}
        stage.deploy(first, workload(GROUP, topic, CLUSTER, deployment.address, **spec))
        keys = [f"small {number}" for number in range(SMALL)]
        fits = ["large a", "large b", "large c"]
        produce(bootstrap, topic, [*keys[:100], *fits, *keys[100:]])
        wait_until(lambda: sum(deployment.failed.values()) >= 3, SETTLE_S, lambda: str(deployment.failed))
        first.kill()  # while it makes copies
        wait_until(lambda: letters().keys() == set(fits), SETTLE_S, lambda: str(letters().keys()))
        assert {len(value or b"") for value, _ in letters().values()} == {len(large("large a"))}
        assert min(deployment.failed[key] for key in fits) >= 2, "once in the topic, once in the tier"

        asyncio.run(limit_batches(2_000, bootstrap, queue, f"{topic}__{GROUP}__retry_1"))
        oversized = ["large d", "large e"]
        produce(bootstrap, topic, oversized)
        wait_until(lambda: letters().keys() >= set(oversized), SETTLE_S, lambda: str(letters().keys()))
        assert min(deployment.failed[key] for key in oversized) >= 2, (
            "the attempt of the retry tier is made in the main topic"
        )
        code, output = switchyard(second, "dlq", "list", name)
        assert (code, output.count(f"({len(large('large d'))} bytes, not in the letter)")) == (0, 2), output

        deployment.fails = False
        code, output = merge(second)
        assert code == 0, output
        everything = {*keys, *fits, *oversized}
        wait_until(
            lambda: deployment.taken.keys() == everything,
            SETTLE_S,
            lambda: str(everything - deployment.taken.keys()),
        )

        deployment.fails = True
        produce(bootstrap, topic, ["large f"])
        wait_until(lambda: "large f" in letters(), SETTLE_S, lambda: str(letters().keys()))
        asyncio.run(empty(bootstrap, topic, 2))
        deployment.fails = False
        code, output = merge(second)
        assert code == EXIT_PARTIAL, output
        assert orjson.loads(output[output.index("{") : output.rindex("}") + 1])["counts"]["left-out"] == 1, (
            output
        )
        assert "large f" not in deployment.taken
        assert not deployment.wrong
