"""MirrorMaker 2: a consumer group continues in the other cluster at the offsets that were translated for it.

Rules
1. It runs in the region that stays, as its documentation advises, and is never restarted.
2. The consumer of the region that stays is a connected process that joins at the command.
3. It keeps groups in sync (`sync.group.offsets.enabled`). `TUNED` makes translation as fine as possible:
   groups every second, and an offset sync with every record. `DEFAULT` keeps the defaults (a minute, a
   hundred records). Both look for new groups every five seconds, not every ten minutes.
4. A region is killed half an interval after the group's offsets have come (tuned: at any moment), which is
   the mean case.
5. Records that were produced in the region that stays are read there from their beginning.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import orjson

from app.dev.demo.failover_report import Switch, active_passive
from app.dev.demo.failover_traffic import Journal, Writer, now_ms
from app.dev.demo.stage import DemoStage, Process, StageError, wait_until
from app.dev.demo.traffic import create_topic, read_all
from app.dev.demo.two_regions import STEP_TIMEOUT_S
from app.dev.yard import Yard
from app.dev.yard.java import Java
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.commits import OffsetCommitter
from switchyard.producer import Region
from tests.bench import mirror_maker
from tests.bench.failing_over.round import (
    AFTER_S,
    PARTITIONS,
    PER_SECOND,
    SETTLE_S,
    WARM_S,
    Round,
    until_steady,
)

LOST, KEPT = "east-regional", "east-aggregate"  # two clusters; here they are two regions
COMMON = {
    "emit.checkpoints.enabled": "true",
    "sync.group.offsets.enabled": "true",
    "refresh.groups.interval.seconds": "5",
}
TUNED = {
    **COMMON,
    "emit.checkpoints.interval.seconds": "1",
    "sync.group.offsets.interval.seconds": "1",
    "offset.lag.max": "0",
}
DEFAULT = COMMON
INTERVAL_S = {"tuned": 1.0, "default": 60.0}
SETTINGS = {"tuned": TUNED, "default": DEFAULT}


def measure(kind: str, java: Java, jars: str) -> Round:
    """A round with `TUNED` or `DEFAULT` settings. Raises StageError."""
    with Yard(regions=1) as yard, DemoStage(yard, region=f"b{uuid.uuid4().hex[:6]}") as stage:
        return _Peer(stage, kind, java, jars).run()


class _Peer:
    def __init__(self, stage: DemoStage, kind: str, java: Java, jars: str) -> None:
        self._stage, self._kind = stage, kind
        self._java, self._jars = java, jars
        self._topic, self._group = "orders", f"billing-{uuid.uuid4().hex[:6]}"
        self._alias = "lost"
        self._copy = f"{self._alias}.{self._topic}"
        self._lost, self._kept = (stage.yard.bootstrap(name) for name in (LOST, KEPT))
        self._go = stage.home / "go"
        self._journals = {home: Journal(stage.home / f"{home}.jsonl") for home in ("east", "west")}

    def run(self) -> Round:
        for bootstrap in (self._lost, self._kept):
            asyncio.run(create_topic(bootstrap, self._topic, PARTITIONS))
        regions = [Region("east", self._lost), Region("west", self._kept)]
        with ExitStack() as stack:
            killed_consumer = self._consumer("east", self._lost, None, self._topic)
            writers = [
                stack.enter_context(Writer(home, at, self._topic, PER_SECOND[home]))
                for home, at in (("east", regions), ("west", regions[::-1]))
            ]
            self._until_read("east")
            copier = mirror_maker.start(
                self._stage, self._java, self._jars, self._alias, (self._lost, self._kept), self._topic,
                "none", SETTINGS[self._kind],
            )  # fmt: skip
            self._until_kept(copier)
            consumer = self._consumer("west", self._kept, self._go, self._topic, self._copy)
            time.sleep(max(WARM_S, INTERVAL_S[self._kind] / 2))
            until_steady(self._journals["east"])
            killed = Switch("killed", now_ms())
            killed_consumer.kill()
            self._stage.yard.kill(LOST)
            began_ms = now_ms()
            self._go.touch()
            first_s = self._first(began_ms, consumer)
            time.sleep(AFTER_S)
            self._stage.yard.start(LOST)
            time.sleep(AFTER_S)
        sent = {name for writer in writers for name in writer.sent}
        self._until_all(sent)
        records: Counter[str] = Counter()
        for bootstrap in (self._lost, self._kept):
            found = asyncio.run(read_all(bootstrap, self._topic))
            records.update(orjson.loads(record.value)["id"] for record in found)
        lines = {home: journal.read() for home, journal in self._journals.items()}
        balance = active_passive(sent, records, lines, [killed])
        return Round(
            first_s, balance.read_again, balance.again[killed.name].oldest_s, len(balance.lost),
            balance.messages,
        )  # fmt: skip

    def _consumer(self, place: str, bootstrap: str, when: Path | None, *topics: str) -> Process:
        command = [sys.executable, "-m", "tests.bench.failing_over.consumer", "--bootstrap", bootstrap]
        command += ["--group", self._group, "--place", place]
        command += ["--journal", str(self._stage.home / f"{place}.jsonl")]
        command += [] if when is None else ["--when", str(when)]
        return self._stage.start(f"consumer-{place}", [*command, *topics])

    def _until_read(self, home: str) -> None:
        journal = self._journals[home]
        wait_until(
            lambda: len({line["partition"] for line in journal.read()}) == PARTITIONS,
            STEP_TIMEOUT_S, lambda: f"{len(journal.lines)} records came",
        )  # fmt: skip

    def _until_kept(self, copier: Process) -> None:
        """Waits until the group has a position in every partition of the copy."""
        parts = [(self._copy, partition) for partition in range(PARTITIONS)]

        async def wait() -> None:
            client = ClusterClient(ClusterSpec("kept", (self._kept,)))
            await client.start()
            try:
                committer, deadline_s = OffsetCommitter(client), time.monotonic() + 2 * STEP_TIMEOUT_S
                while True:
                    now = await committer.committed(self._group, parts)
                    if all(at is not None for at in now.values()):
                        return
                    if time.monotonic() > deadline_s or not copier.running:
                        raise StageError(f"the group is not kept in step: {now}\n{copier.tail()}")
                    await asyncio.sleep(0.05)
            finally:
                await client.stop()

        asyncio.run(wait())

    def _first(self, began_ms: float, consumer: Process) -> list[float]:
        first: dict[int, float] = {}

        def flows() -> bool:
            for line in self._journals["west"].read():
                first.setdefault(line["partition"], (line["at_ms"] - began_ms) / 1000)
            return len(first) == PARTITIONS

        wait_until(flows, STEP_TIMEOUT_S, lambda: f"{first}\n{consumer.tail()}", 0.02)
        return [first[partition] for partition in range(PARTITIONS)]

    def _until_all(self, sent: set[str]) -> None:
        """Waits until all messages are delivered and no more arrive; after the deadline they are lost."""
        deadline_s = time.monotonic() + STEP_TIMEOUT_S
        before, since_s = -1, time.monotonic()
        while time.monotonic() < deadline_s:
            lines = [line for journal in self._journals.values() for line in journal.read()]
            if len(lines) != before:
                before, since_s = len(lines), time.monotonic()
            elif time.monotonic() - since_s > SETTLE_S and sent <= {line["id"] for line in lines}:
                return
            time.sleep(0.5)
