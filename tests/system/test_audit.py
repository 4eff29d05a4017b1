"""Audits by real workers, some of which are killed: each record is counted once, and losses are reported."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner

from app.cli.main import switchyard
from app.dev.demo.stage import DemoStage, Process, http, route, wait_until
from app.dev.demo.traffic import create_topic
from tests.kafka.conftest import producing
from tests.system.fleet import assignments, start_workers

pytestmark = pytest.mark.system

HOME, AWAY = "east-regional", "east-aggregate"
PARTITIONS = 3
WIDTH_MS = 5_000
DISORDER_MS = 60_000  # twelve windows
ENOUGH_S = 120.0
SEED = 11


def plan(name: str, *topics: str, **spec: Any) -> dict[str, Any]:
    """An audit plan with short windows."""
    return {
        "apiVersion": "switchyard/v1", "kind": "AuditPlan", "metadata": {"name": name},
        "spec": {"topics": list(topics), "window": "5s", "lateness": "4s", **spec},
    }  # fmt: skip


class Traffic:
    """Writes batches of all sizes and codecs into every partition; `sent` counts the records by window.

    Records are up to `late_ms` older than the moment of writing, in no order. `record_counts` has the numbers
    of records that are written at a time.
    """

    def __init__(
        self,
        bootstraps: list[str],
        topic: str,
        record_counts: tuple[int, ...] = (3, 60, 900),
        late_ms: int = 2_000,
    ) -> None:
        self.sent: Counter[int] = Counter()
        self.last_ms = 0
        self._bootstraps, self._topic, self._record_counts, self._late_ms = (
            bootstraps,
            topic,
            record_counts,
            late_ms,
        )
        self._ending = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._produce()))

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    async def _produce(self) -> None:
        chance, number = random.Random(SEED), 0
        while not self._ending.is_set():
            now_ms, record_counts = time.time_ns() // 1_000_000, []
            for _ in range(chance.choice(self._record_counts)):
                record_counts.append((number % PARTITIONS, now_ms - chance.randrange(self._late_ms)))
                number += 1
            codec = chance.choice([None, "lz4", "zstd", "gzip"])
            size = chance.choice([300, 16_000])
            for bootstrap in self._bootstraps:
                async with producing(bootstrap, max_batch_size=size, compression_type=codec) as producer:
                    for partition, at_ms in record_counts:
                        await producer.send(self._topic, b"v" * (at_ms % 90), partition=partition,
                                            timestamp_ms=at_ms)  # fmt: skip
            self.sent.update(at_ms - at_ms % WIDTH_MS for _, at_ms in record_counts)
            await asyncio.sleep(0.2)


def audit_rows(worker: Process, what: str, **query: str) -> list[dict[str, Any]]:
    """All rows of an audit list; [] while workers read the tables."""
    parameters = "&".join(f"{name}={value}" for name, value in query.items())
    status, body = http("GET", f"{worker.url}/api/v1/audit/{what}?limit=1000&{parameters}")
    assert status in {200, 502, 503}, body
    return list(body["items"]) if status == 200 else []


def window_counts(worker: Process, topic: str, tier: str = "regional") -> Counter[int]:
    """Records by window."""
    rows = audit_rows(worker, "windows", topic=topic, tier=tier)
    return Counter({row["start_ms"]: row["count"] for row in rows})


def _counted_more_than(worker: Process, topic: str, enough: int) -> bool:
    return window_counts(worker, topic, "aggregate").total() > enough


@pytest.mark.deep(minutes=2.1)
def test_every_record_is_counted_once_at_every_tier_although_workers_are_killed(
    stage: DemoStage, topic_name: str
) -> None:
    home = stage.yard.bootstrap(HOME)
    asyncio.run(create_topic(home, topic_name, PARTITIONS))
    workers = start_workers(stage)
    stage.deploy(workers[0], plan("all", topic_name))
    stage.deploy(workers[0], route("copy", HOME, AWAY, topic_name))
    jobs = 3 * PARTITIONS  # the audit discovers the copy and counts it, too
    with Traffic([home], topic_name, late_ms=DISORDER_MS) as traffic:
        for number, kills in enumerate((True, False, True)):
            wait_until(
                lambda: len(assignments(workers[0])) == jobs, ENOUGH_S, lambda: str(assignments(workers[0]))
            )
            enough = window_counts(workers[0], topic_name, "aggregate").total() + 1_000
            wait_until(partial(_counted_more_than, workers[0], topic_name, enough), ENOUGH_S, workers[0].tail)
            owners = Counter(dict(workers[0].jobs()))
            victim = max(workers, key=lambda worker: owners[worker.url])
            assert owners[victim.url], "the victim has no jobs"
            workers.remove(victim)
            stage.deploy(
                workers[0], plan("all", topic_name, lateness=f"{5 + number}s")
            )  # its jobs begin again
            workers.append(stage.worker())
            if kills:
                victim.kill()
            else:
                assert victim.terminate() == 0
    sent, worker = traffic.sent, workers[0]
    for tier in ("regional", "aggregate"):
        wait_until(
            lambda tier=tier: window_counts(worker, topic_name, tier).total() >= sent.total(), ENOUGH_S,
            lambda: f"{window_counts(worker, topic_name).total()} of {sent.total()}\n{worker.tail()}", 0.5,
        )  # fmt: skip
        assert window_counts(worker, topic_name, tier) == sent
        assert window_counts(workers[1], topic_name, tier) == sent, "both workers must answer the same"
    states = {row["state"] for row in audit_rows(worker, "loss", topic=topic_name)}
    assert states <= {"late"}, "nothing was lost, so no loss may be reported"


def test_exactly_the_records_missing_at_the_next_tier_are_reported_as_loss(
    stage: DemoStage, topic_name: str
) -> None:
    home, away = stage.yard.bootstrap(HOME), stage.yard.bootstrap(AWAY)
    for bootstrap in (home, away):
        asyncio.run(create_topic(bootstrap, topic_name, PARTITIONS))
    worker = stage.worker()
    stage.deploy(worker, plan("all", topic_name, clusters=["regional", "aggregate"]))

    async def lose(count: int) -> int:
        """Records that only the first tier gets; their window."""
        at_ms = time.time_ns() // 1_000_000
        async with producing(home) as producer:
            for _ in range(count):
                await producer.send_and_wait(topic_name, b"lost", partition=0, timestamp_ms=at_ms)
        return at_ms - at_ms % WIDTH_MS

    with Traffic([home, away], topic_name) as traffic:
        wait_until(lambda: traffic.sent.total() > 500, ENOUGH_S, worker.tail)
        window = asyncio.run(lose(3))
        wait_until(
            lambda: audit_rows(worker, "loss", topic=topic_name), ENOUGH_S,
            lambda: str(audit_rows(worker, "windows", topic=topic_name)), 0.5,
        )  # fmt: skip
        lost = audit_rows(worker, "loss", topic=topic_name)
        done = CliRunner().invoke(switchyard, ["audit", "loss", "--url", worker.url, "-o", "csv"])
        wait_until(
            lambda: len(audit_rows(worker, "loss", topic=topic_name, state="ok")) >= 2, ENOUGH_S,
            worker.tail, 0.5,
        )  # fmt: skip
        lost += audit_rows(worker, "loss", topic=topic_name)
    assert {(row["start_ms"], row["state"], row["missing"]) for row in lost} == {(window, "lossy", 3)}
    assert done.exit_code == 8, done.output
    assert done.stdout.splitlines()[1].startswith(f"{topic_name},regional,aggregate,")
