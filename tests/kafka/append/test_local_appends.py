"""Rounds confirm the leader epochs of appended batches; an error of one lane affects no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from aiokafka.protocol.produce import ProduceResponse_v8
from structlog.testing import capture_logs

from app.kafka.append.local_appends import LaneWrites, LocalAppends
from app.kafka.append.pending_batch import PendingBatch
from app.kafka.append.protocol import answers_of
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.epoch_ends import EpochEndResponse
from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches, FetchedHeaders, PartitionFetch
from app.kafka.fetch.service import FetchService
from app.kafka.records.verbatim_copy import VerbatimCopy
from tests.kafka.records.batches import make_batch

EPOCH = 3
TOPICS = {"orders": 1, "payments": 2, "refunds": 2}  # topic -> the broker that leads it


class Brokers(ClusterClient):
    """Leaders with answers set by the test: `ends` of logs; `before` runs before a broker's answer."""

    def __init__(self) -> None:
        super().__init__(ClusterSpec("none", ("h:1",)))
        self.ends = dict.fromkeys(TOPICS, 0)
        self.before: dict[int, Callable[[], Any]] = {}

    def known_leader(self, topic: str, partition: int) -> int | None:
        return TOPICS[topic]

    async def send(self, node: int, request: Any, group: str = "default") -> Any:
        if node in self.before:
            await self.before[node]()
        return EpochEndResponse(
            0,
            [
                (topic, [(0, 0, EPOCH, self.ends[topic])])
                for topic, led_by in TOPICS.items()
                if led_by == node
            ],
        )


class Rig:
    """A follower and a writer of each topic; the test starts each round."""

    def __init__(self) -> None:
        self.brokers = Brokers()
        self.got: dict[str, list[FetchedBatches]] = {topic: [] for topic in TOPICS}
        self.fetch = FetchService(self.brokers, self._deliver, ByteBudget(1 << 24))
        self.appended = LocalAppends(self.brokers, self.fetch.shared_reads)
        self.appended._keeps_batches = dict.fromkeys(TOPICS, True)
        self.appended._checked_s = float("inf")
        self.writers: dict[str, LaneWrites] = {}
        self.sent: dict[str, int] = dict.fromkeys(TOPICS, 0)
        for topic in TOPICS:
            self.fetch.add(topic, topic, 0, 0, "id", counts=lambda headers: len(headers.base_offset))
            self.part(topic).epoch = EPOCH
            sent_to = partial(self.sent.__getitem__, topic)
            self.writers[topic] = self.appended.begin(topic, 0, "id", sent_to, lambda: 0)
            self.writers[topic].acknowledged_s = float("inf")

    def part(self, topic: str) -> PartitionFetch:
        return self.fetch._partitions[topic]

    async def _deliver(self, item: Any) -> None:
        self.got[item.topic].append(item)
        item.release()

    def append(self, topic: str, *, log_time_ms: int = -1) -> None:
        """Sends a batch of ten records, which the leader acknowledges."""
        start = self.sent[topic]
        copy = VerbatimCopy(make_batch(start, [(b"k", b"v")] * 10), 10, start, start + 10)
        self.sent[topic] = self.brokers.ends[topic] = start + 10
        pending = PendingBatch(copy.data, 10, asyncio.get_running_loop().create_future())
        pending.sequence, pending.log_time_ms = start, log_time_ms
        pending.acknowledge(start, 7)
        self.writers[topic].acknowledged(pending.future.result(), copy)

    async def round(self) -> None:
        """Runs a round, until the followers have all of its batches."""
        await self.appended._round(1.0)
        while any(self.part(topic).is_given for topic in TOPICS):  # noqa: ASYNC110 - a task of its own
            await asyncio.sleep(0)

    def spans(self, topic: str) -> list[tuple[int, int]]:
        assert all(isinstance(one, FetchedHeaders) for one in self.got[topic])
        return [(one.start_offset, one.next_offset) for one in self.got[topic]]


async def test_batches_sent_and_acknowledged_between_two_answers_are_given() -> None:
    rig = Rig()
    await rig.round()
    rig.append("orders")
    await rig.round()
    assert (rig.spans("orders"), rig.spans("payments")) == ([(0, 10)], [])


async def test_lane_of_a_waiting_follower_joins_few_rounds_unless_many_batches_wait() -> None:
    rig = Rig()
    await rig.round()
    rig.append("orders")
    await rig.round()
    assert rig.part("orders").waits
    for most_rows, spans in ((8_192, [(0, 10)]), (1, [(0, 10), (10, 20)])):
        rig.writers["orders"].batches._most_rows = most_rows
        if most_rows == 8_192:
            rig.append("orders")
        await rig.appended._round(1.0, all_lanes=False)
        while rig.part("orders").is_given:  # noqa: ASYNC110 - a task of its own
            await asyncio.sleep(0)
        assert rig.spans("orders") == spans


async def test_round_ends_with_its_last_answer_even_if_another_fails() -> None:
    rig = Rig()
    await rig.round()
    rig.append("orders")
    requested, answers = asyncio.Event(), asyncio.Event()

    async def late() -> None:
        requested.set()
        await answers.wait()

    async def breaks() -> None:
        await requested.wait()
        raise LookupError("nobody thought of it")

    rig.brokers.before = {1: late, 2: breaks}
    with capture_logs():
        a_round = asyncio.ensure_future(rig.appended._round(1.0))
        await requested.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not a_round.done(), "otherwise the next round would take this round's answer"
        answers.set()
        await a_round
    await rig.round()
    assert rig.spans("orders") == [(0, 10)]


async def test_failing_lane_is_fetched_and_the_others_are_given() -> None:
    rig = Rig()

    def breaks(_: Any) -> int:
        raise LookupError("nobody thought of it")

    rig.part("payments").counts = breaks
    with capture_logs() as logs:
        await rig.round()
        for number in range(1, 8):
            payments = rig.part("payments")
            payments.next_offset = rig.sent["payments"]  # as if a fetch had brought the records
            for topic in TOPICS:
                rig.append(topic)
            await rig.round()
            assert rig.spans("orders")[-1] == (10 * number - 10, 10 * number)
            assert rig.spans("refunds") == rig.spans("orders")
    assert rig.spans("payments") == []
    assert len([one for one in logs if one["log_level"] == "error"]) == 1, "one error, not one in every round"


async def test_leaders_log_end_is_not_a_high_watermark() -> None:
    rig = Rig()
    await rig.round()
    part = rig.part("orders")
    rig.append("orders")
    rig.brokers.ends["orders"] = 25  # 15 records more, not acknowledged
    await rig.round()
    assert (part.high_watermark, part.seen_at_s) == (10, 0.0), (
        "the high watermark comes from acknowledgements"
    )
    assert rig.got["orders"][-1].high_watermark == 10
    rig.brokers.ends["orders"] = 10
    rig.append("orders")
    await rig.round()
    assert part.high_watermark == 20
    assert part.seen_at_s > 0


async def test_batches_with_the_logs_timestamps_are_fetched() -> None:
    rig = Rig()
    await rig.round()
    rig.append("orders")
    rig.append("orders", log_time_ms=1_700_000_000_000)
    await rig.round()
    assert rig.spans("orders") == []
    assert not rig.part("orders").waits
    rig.append("orders")
    await rig.round()
    assert rig.spans("orders") == [], "the batches before it are not fetched yet"


def test_acknowledgements_show_the_logs_timestamps() -> None:
    answer = answers_of(
        ProduceResponse_v8([("orders", [(0, 0, 5, -1, 0, [], None), (1, 0, 6, 1_700, 0, [], "no")])], 0)
    )
    assert [(one.base_offset, one.log_time_ms) for one in answer.values()] == [(5, -1), (6, 1_700)]
