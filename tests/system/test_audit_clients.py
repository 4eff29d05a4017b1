"""Reports of clients, by the audit library, are compared tier by tier with the counts of a plan."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from app.audit.folds.tier import CloseWindows, ForgetWindows
from app.controllog import codec
from app.dev.demo.stage import DemoStage, Process, wait_until
from app.dev.demo.traffic import create_topic
from switchyard.audit import Audit, AuditedConsumer, AuditedProducer, HttpOutput, KafkaOutput
from switchyard.audit.kafka_clients import MESSAGE_ID
from switchyard.audit.kafka_output import audit_topic
from switchyard.audit.model.reports import Increment, Report, Scope, report_id
from switchyard.audit.model.totals import Totals
from switchyard.audit.outputs import Output
from tests.kafka.conftest import connected
from tests.system.test_audit import (
    ENOUGH_S,
    HOME,
    PARTITIONS,
    SEED,
    WIDTH_MS,
    audit_rows,
    plan,
    window_counts,
)

pytestmark = pytest.mark.system

TIERS = ("proxy-client", "regional", "consumer")
LOST = 3


class Clients:
    """An audited producer and an audited consumer of a topic; `sent` counts the records by window."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.sent: Counter[int] = Counter()
        self.handled = 0
        self.flowing = asyncio.Event()
        self.ending = asyncio.Event()
        self._bootstrap, self._topic = bootstrap, topic

    async def produce(self, audit: Audit) -> None:
        """Sends records with ids into every partition, until the end."""
        chance, number = random.Random(SEED), 0
        async with AuditedProducer(AIOKafkaProducer(bootstrap_servers=self._bootstrap), audit) as producer:
            while not self.ending.is_set():
                now_ms = time.time_ns() // 1_000_000
                for _ in range(chance.choice([3, 60, 300])):
                    at_ms, name = now_ms - chance.randrange(1_000), b"message %d" % number
                    await producer.send(
                        self._topic, b"value", partition=number % PARTITIONS, timestamp_ms=at_ms,
                        headers=[(MESSAGE_ID, name)],
                    )  # fmt: skip
                    self.sent[at_ms - at_ms % WIDTH_MS] += 1
                    number += 1
                await asyncio.sleep(0.1)

    async def consume(self, audit: Audit) -> None:
        """Reads the topic from its beginning, until the end."""
        reader = AIOKafkaConsumer(
            self._topic, bootstrap_servers=self._bootstrap, group_id=self._topic, enable_auto_commit=False,
            auto_offset_reset="earliest",
        )  # fmt: skip
        async with AuditedConsumer(reader, audit) as consumer:
            while not self.ending.is_set() or self.handled < self.sent.total():
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    self.handled += len(records)
                await consumer.commit()
                if self.handled > 500:
                    self.flowing.set()


async def forge_worker_reports(bootstrap: str, topic: str, region: str, at_ms: int) -> None:
    """Writes events that only workers may write, as a client: a partition's count, closed windows, forgotten
    windows."""
    async with connected(bootstrap) as client:
        topic_id = (await client.topic_ids([topic]))[topic]
    scope, source = Scope(topic, "regional", HOME, WIDTH_MS), f"{topic_id}/0"
    start = Increment(at_ms - at_ms % WIDTH_MS, Totals(1_000_000))
    forged = Report(
        report_id(scope, source, 0, 0, 1 << 17, final=False), *scope, source, at_ms, (start,), part=0,
        upto=1 << 17,
    )  # fmt: skip
    later_ms = at_ms + 10 * WIDTH_MS
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for event in (
            forged,
            CloseWindows(*scope[:3], later_ms, at_ms),
            ForgetWindows(*scope[:3], later_ms, at_ms),
        ):
            await producer.send_and_wait(audit_topic(region), codec.encode(event), key=topic.encode())


def verdicts_of_pair(worker: Process, topic: str, pair: tuple[str, str], state: str) -> list[dict[str, Any]]:
    """Verdicts on windows between two tiers."""
    rows = audit_rows(worker, "loss", topic=topic, state=state)
    return [row for row in rows if (row["from_tier"], row["to_tier"]) == pair]


@pytest.mark.deep(minutes=0.5)
def test_reports_of_clients_are_compared_with_the_records_in_kafka(
    stage: DemoStage, topic_name: str, tmp_path: Path
) -> None:
    """Reports arrive by Kafka and by HTTP; the producer reports three records that Kafka never got. Forged
    reports do not count."""
    home = stage.yard.bootstrap(HOME)
    asyncio.run(create_topic(home, topic_name, PARTITIONS))
    worker = stage.worker()
    deployed = plan("all", topic_name, clusters=["regional"], tiers=list(TIERS), id={"header": MESSAGE_ID})
    stage.deploy(worker, deployed)
    before, after = (TIERS[0], TIERS[1]), (TIERS[1], TIERS[2])

    def audit(tier: str, output: Output) -> Audit:
        return Audit(
            origin="billing", tier=tier, cluster=HOME, output=output, wal=tmp_path / tier, window_ms=WIDTH_MS,
            idle_ms=3_000, report_interval_s=0.5,
        )  # fmt: skip

    def windows_closed() -> bool:
        """Whether both pairs have closed windows, and the first pair a lossy one."""
        return (
            len(verdicts_of_pair(worker, topic_name, before, "ok")) >= 2
            and len(verdicts_of_pair(worker, topic_name, after, "ok")) >= 2
            and bool(verdicts_of_pair(worker, topic_name, before, "lossy"))
        )

    async def run() -> tuple[Counter[int], int]:
        clients = Clients(home, topic_name)
        sends = audit(TIERS[0], KafkaOutput(home, stage.region))
        handles = audit(TIERS[2], HttpOutput(f"{worker.url}/api/v1/audit/reports"))
        async with sends, handles, asyncio.TaskGroup() as group:
            group.create_task(clients.produce(sends))
            consuming = group.create_task(clients.consume(handles))
            await asyncio.wait_for(clients.flowing.wait(), ENOUGH_S)
            at_ms = time.time_ns() // 1_000_000
            await forge_worker_reports(home, topic_name, stage.region, at_ms)
            for number in range(LOST):
                sends.sent(topic_name, at_ms, 5, b"lost %d" % number)
            try:
                await asyncio.to_thread(
                    wait_until,
                    windows_closed,
                    ENOUGH_S,
                    lambda: f"{audit_rows(worker, 'windows')}\n{worker.tail()}",
                    0.5,
                )
            finally:
                clients.ending.set()
            await asyncio.wait_for(consuming, ENOUGH_S)
            assert not sends.stats.wrong
            assert not handles.stats.wrong
        return clients.sent, at_ms - at_ms % WIDTH_MS

    sent, window = asyncio.run(run())
    sent_as_reported = sent + Counter({window: LOST})
    for tier, wanted in zip(TIERS, (sent_as_reported, sent, sent), strict=True):
        wait_until(
            lambda tier=tier, wanted=wanted: window_counts(worker, topic_name, tier).total()
            >= wanted.total(),
            ENOUGH_S, lambda tier=tier: f"{tier}: {window_counts(worker, topic_name, tier)}, of {sent}", 0.5,
        )  # fmt: skip
        assert window_counts(worker, topic_name, tier) == wanted
    (lost,) = audit_rows(worker, "loss", topic=topic_name, state="lossy")
    assert (lost["from_tier"], lost["to_tier"], lost["start_ms"], lost["missing"]) == (*before, window, LOST)
    for state in ("corrupted", "duplicated", "absent-audit"):
        assert not audit_rows(worker, "loss", topic=topic_name, state=state)
    for row in audit_rows(worker, "loss", topic=topic_name, state="ok"):
        assert row["by"] == "ids"
