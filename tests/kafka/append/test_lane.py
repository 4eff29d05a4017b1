"""A lane against a partition that obeys Kafka's rules of sequence numbers and fails at any time.

test_appender.py uses real brokers. Here are cases that they cannot produce on purpose: late and missing
answers, and batches that arrive after they were given up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kafka.append import appender as append
from app.kafka.append import lane as append_lane
from app.kafka.append.appender import Appender
from app.kafka.append.errors import DUPLICATE, NO_ANSWER, UNKNOWN_SERVER_ERROR, BatchRefused, LaneClosed
from app.kafka.append.lane import IN_FLIGHT, AppendLane
from app.kafka.append.pending_batch import PendingBatch, stamp_of
from app.kafka.client.cluster import ClusterSpec
from app.kafka.producers.history import OwnBatches
from app.kafka.producers.ids import ProducerId
from app.kafka.records.verbatim_copy import SEQUENCES, next_sequence

OUT_OF_ORDER, OLD_EPOCH, TOO_LARGE, TOO_FEW, TOO_FEW_AFTER_APPEND, NOT_LEADER = 45, 47, 10, 19, 20, 6
ENOUGH_S = 60.0
LARGE = 100  # a batch of this many records is refused
TAKEN_BEFORE = "a batch was appended before the one in front of it; none is lost"


class Partition:
    """Kafka's ProducerAppendInfo and ProducerStateEntry for one producer id; `log` holds batches."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.headers: list[Any] = []
        self.end = 0
        self.epoch, self.last_sequence = -1, -1
        self.remembered: deque[tuple[int, int, int]] = deque(maxlen=IN_FLIGHT)  # first, count, offset

    def append(self, data: bytes, count: int, epoch: int, first: int) -> tuple[int, int]:
        """Returns the error code and the base offset."""
        if count >= LARGE:
            return TOO_LARGE, -1
        if epoch < self.epoch:
            return OLD_EPOCH, -1
        for sequence, found, offset in self.remembered:
            if (sequence, found, epoch) == (first, count, self.epoch):
                return 0, offset
        if epoch != self.epoch:
            if first != 0 and self.epoch != -1:  # an unknown producer may begin with any number
                return OUT_OF_ORDER, -1
            self.remembered.clear()
        elif first != (self.last_sequence + 1) % SEQUENCES:
            return OUT_OF_ORDER, -1
        offset, self.end = self.end, self.end + count
        self.epoch, self.last_sequence = epoch, (first + count - 1) % SEQUENCES
        self.remembered.append((first, count, offset))
        self.log.append(data)
        self.headers.append(
            SimpleNamespace(base_offset=offset, producer_epoch=epoch, base_sequence=first, record_count=count)
        )
        return 0, offset


class FakeAppender:
    """The parts of an appender that its lane uses."""

    def __init__(self, partition: Partition) -> None:
        self.cluster = SimpleNamespace(name="there", spec=ClusterSpec("there", ("127.0.0.1:1",)))
        self.partition = partition
        self.incidents: list[Any] = []

    def ready(self, lane: AppendLane) -> None: ...
    def forget(self, lane: AppendLane) -> None: ...
    def look_up(self, lane: AppendLane) -> None:
        found = [header for header in self.partition.headers if header.base_offset >= lane.floor]
        asyncio.get_running_loop().call_soon(lane.looked_up, found)

    def report_incident(self, trouble: Any) -> None:
        self.incidents.append(trouble)


Request = tuple[PendingBatch, tuple[bytes, int, int, int]]


async def _play(counts: list[int], choose: Any, first_sequence: int, *, forgets: bool = False) -> None:
    """Plays random events. `forgets`: the partition may forget the producer; late batches never arrive."""
    partition = Partition()
    side = FakeAppender(partition)
    lane = AppendLane(side, "t", 0, ProducerId(9), 0)  # type: ignore[arg-type]
    lane._next_sequence = first_sequence  # the partition knows nothing yet and takes any
    expected: list[bytes] = []
    waiting: deque[tuple[bytes, int, asyncio.Future[int]]] = deque()
    offsets: dict[bytes, int] = {}
    for number, count in enumerate(counts):
        waiting.append((b"%d" % number, count, await lane.append(b"%d" % number, count)))
        expected += [b"%d" % number] if count < LARGE else [b"%d a" % number, b"%d b" % number]
    flying: deque[Request] = deque()  # on the connection, in order
    late: list[Request] = []  # given up by the lane, maybe still in flight
    troubles = 12
    while waiting:
        await asyncio.sleep(0)  # timers
        data, count, future = waiting[0]
        if future.done():
            waiting.popleft()
            if isinstance(future.exception(), BatchRefused):
                assert count >= LARGE
                pieces = [(data + b" a", 2), (data + b" b", 2)]
                made = lane.replace_refused(pieces)
                waiting.extendleft(
                    (*piece, found) for piece, found in zip(reversed(pieces), reversed(made), strict=True)
                )
            else:
                offsets[data] = future.result()
            continue
        if forgets:
            late.clear()
        acts = ["send"] * lane.is_ready + ["answer"] * bool(flying)
        if troubles:
            acts += ["fail", "fail after append", "lose"] * bool(flying) + ["late"] * bool(late)
            acts += ["restart"] * bool(
                flying
            )  # a restart that the lane does not notice is harmless only for recent batches
            acts += ["forget"] * (forgets and bool(flying))
        if not acts:
            continue
        act = choose(acts)
        troubles -= act not in {"send", "answer"}
        if act == "send":
            pending = lane.take()
            if pending is not None:
                sent = bytes(pending.data), pending.record_count, lane.producer.epoch, pending.sequence
                flying.append((pending, sent))
                assert len(flying) <= IN_FLIGHT
        elif act == "answer":
            pending, request = flying.popleft()
            lane.answered(pending, *partition.append(*request), "")
        elif act == "fail":
            lane.answered(flying.popleft()[0], choose([TOO_FEW, NOT_LEADER]), -1, "")
        elif act == "fail after append":
            pending, request = flying.popleft()
            code, offset = partition.append(*request)
            lane.answered(pending, code or choose([TOO_FEW_AFTER_APPEND, NOT_LEADER]), offset, "")
        elif act == "lose":  # the connection: the broker handles any part of its requests, now or later
            for _ in range(choose(list(range(len(flying) + 1)))):
                partition.append(*flying[0][1])
                late.append(flying.popleft())
                lane.answered(late.pop()[0], NO_ANSWER, -1, "")
            while flying:
                late.append(flying.popleft())
                lane.answered(late[-1][0], NO_ANSWER, -1, "")
        elif act == "late":
            partition.append(*late.pop(0)[1])
        elif act == "forget":
            partition.epoch = partition.last_sequence = -1
            partition.remembered.clear()
        else:  # a broker that starts knows the last batch of a producer, or nothing when its records are old
            late.clear()
            while flying:
                lane.answered(flying.popleft()[0], NO_ANSWER, -1, "")
            while len(partition.remembered) > 1:
                partition.remembered.popleft()
            if choose(["its records are old", "they are new"]) == "its records are old":
                partition.epoch = partition.last_sequence = -1
                partition.remembered.clear()
    lane.close()
    if forgets:
        _every_place_parts_the_log(partition, expected, offsets)
        assert partition.log == expected or TAKEN_BEFORE in str(side.incidents)
        return
    for _, request in late:
        partition.append(*request)
    assert partition.log == expected
    known = [offset for offset in offsets.values() if offset >= 0]
    assert known == sorted(set(known))
    assert not side.incidents  # no acknowledged batch was lost


def _every_place_parts_the_log(
    partition: Partition, expected: list[bytes], offsets: dict[bytes, int]
) -> None:
    """Asserts that every batch is there once, and that known offsets are barriers: earlier batches lie below,
    later ones above."""
    assert sorted(partition.log) == sorted(expected)
    ends = {
        data: header.base_offset + header.record_count
        for data, header in zip(partition.log, partition.headers, strict=True)
    }
    for number, data in enumerate(expected):
        if offsets[data] >= 0:
            assert all(ends[other] <= ends[data] for other in expected[:number])
            assert all(ends[other] > ends[data] for other in expected[number + 1 :])


@given(
    st.lists(st.sampled_from([1, 2, 2, 2, 3, LARGE]), min_size=1, max_size=12),
    st.sampled_from([0, 0, SEQUENCES - 3]),
    st.data(),
)
def test_every_batch_is_in_the_log_once_and_in_order_after_any_failure(
    counts: list[int], first_sequence: int, data: st.DataObject
) -> None:
    """uReplicator's retries reordered records: of several requests in flight, a failed one was sent again
    later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_lane, "BACKOFF_MIN_S", 0.0)
        asyncio.run(_play(counts, lambda options: data.draw(st.sampled_from(options)), first_sequence))


@given(
    st.lists(st.sampled_from([1, 2, 2, 2, 3, LARGE]), min_size=1, max_size=12),
    st.sampled_from([0, 0, SEQUENCES - 3]),
    st.data(),
)
def test_every_batch_is_in_the_log_once_with_a_true_or_no_offset_whatever_a_broker_forgets(
    counts: list[int], first_sequence: int, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_lane, "BACKOFF_MIN_S", 0.0)
        asyncio.run(
            _play(counts, lambda options: data.draw(st.sampled_from(options)), first_sequence, forgets=True)
        )


async def test_full_lane_makes_its_sender_wait_and_closing_releases_it() -> None:
    lane = AppendLane(FakeAppender(Partition()), "t", 0, ProducerId(9))  # type: ignore[arg-type]
    big = bytes(append_lane.LANE_BYTES // 2)
    first, second = [await lane.append(big, 1) for _ in range(2)]
    waiting = asyncio.create_task(lane.append(b"x", 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    pending = lane.take()
    assert pending is not None
    lane.answered(pending, 0, 0, "")
    third = await waiting
    assert first.result() == 0
    waiting = asyncio.create_task(lane.append(big, 1))
    await (await_more := waiting)
    blocked = asyncio.create_task(lane.append(big, 1))
    await asyncio.sleep(0)
    lane.close()
    with pytest.raises(LaneClosed):
        await blocked
    assert second.cancelled()
    assert third.cancelled()
    assert await_more.result().cancelled()


async def test_next_large_batch_is_queued_before_the_previous_one_is_acknowledged() -> None:
    """The fault: the lane accepted it after the acknowledgement, so it idled for a round trip with each
    batch."""
    lane = AppendLane(FakeAppender(Partition()), "t", 0, ProducerId(9))  # type: ignore[arg-type]
    large = bytes(append_lane.LANE_BYTES * 3 // 4)
    futures = [await lane.append(large, 1) for _ in range(2)]
    for n in range(2, 5):
        waiting = asyncio.create_task(lane.append(large, 1))
        await asyncio.sleep(0)
        assert not waiting.done(), "the lane holds two large batches"
        pending = lane.take()
        assert pending is not None
        lane.answered(pending, 0, n, "")
        async with asyncio.timeout(60):
            futures.append(await waiting)
    lane.close()


async def test_nothing_is_sent_in_a_new_epoch_until_the_sender_has_saved_it() -> None:
    """Otherwise a successor could take a used epoch: it skips 16 epochs, so an owner with more was not
    fenced."""
    bumped: list[ProducerId] = []
    side: Any = FakeAppender(Partition())
    lane = AppendLane(side, "t", 0, ProducerId(9), 0, on_epoch_bump=lambda lane: bumped.append(lane.producer))
    await lane.append(b"a", LARGE)
    await lane.append(b"b", 1)
    for code in (NO_ANSWER, TOO_LARGE):  # refused, while the first attempt may be in flight
        pending = lane.take()
        assert pending is not None
        lane.answered(pending, code, -1, "")
        lane.looked_up([])
    lane.replace_refused([(b"a", 1)])
    assert bumped == [ProducerId(9, 1)]
    assert not lane.is_ready
    lane.epoch_saved()
    assert lane.is_ready
    lane.close()


@pytest.mark.parametrize("takes", [False, True])
async def test_batch_that_a_deposed_leader_may_have_appended_keeps_its_sequence_number(
    takes: bool,
) -> None:
    """The fault: another batch got its number in the same epoch, and a broker took that for a duplicate.
    Batches in the log would have been sent again under other numbers."""
    partition = Partition()
    side = FakeAppender(partition)
    lane = AppendLane(side, "t", 0, ProducerId(9), 0)  # type: ignore[arg-type]
    futures = [
        await lane.append(data, count) for data, count in ((b"a", 1), (b"b", LARGE), (b"c", 2), (b"d", 1))
    ]

    def sent() -> tuple[PendingBatch, tuple[bytes, int, int, int]]:
        pending = lane.take()
        assert pending is not None
        return pending, (bytes(pending.data), pending.record_count, pending.epoch, pending.sequence)

    first, request = sent()
    lane.answered(first, *partition.append(*request), "")
    (refused, request), (behind, other) = sent(), sent()
    lane.answered(refused, *partition.append(*request), "")
    if takes:  # the new leader knows nothing of a producer whose records are old
        partition.epoch = partition.last_sequence = -1
        partition.remembered.clear()
        assert partition.append(*other) == (0, 1)
    lane.answered(behind, NOT_LEADER, -1, "")
    async with asyncio.timeout(ENOUGH_S):
        while not lane.is_ready:  # noqa: ASYNC110 - a callback makes it so
            await asyncio.sleep(0)
    again, request = sent()
    assert again is refused
    lane.answered(again, *partition.append(*request), "")
    futures += lane.replace_refused([(b"b", 2)])
    assert lane.producer == ProducerId(9, 1)
    async with asyncio.timeout(ENOUGH_S):
        while not all(future.done() for future in futures):
            await asyncio.sleep(0)
            if lane.is_ready and (pending := lane.take()) is not None:
                request = bytes(pending.data), pending.record_count, pending.epoch, pending.sequence
                lane.answered(pending, *partition.append(*request), "")
    assert partition.log == ([b"a", b"c", b"b", b"d"] if takes else [b"a", b"b", b"c", b"d"])
    assert [trouble.message.split(": ")[1] for trouble in side.incidents] == ([TAKEN_BEFORE] if takes else [])
    assert isinstance(futures[1].exception(), BatchRefused)
    lane.close()


def _sent(lane: AppendLane) -> Request:
    pending = lane.take()
    assert pending is not None
    return pending, (bytes(pending.data), pending.record_count, pending.epoch, pending.sequence)


async def _ready(lane: AppendLane) -> None:
    async with asyncio.timeout(ENOUGH_S):
        while not lane.is_ready:  # noqa: ASYNC110 - a callback makes it so
            await asyncio.sleep(0)


async def _jumped(side: FakeAppender, code: int) -> tuple[AppendLane, list[asyncio.Future[int]]]:
    """A lane that has appended "a" and then "c", while the broker answered "b" with `code`. The broker may
    forget a producer with old records at any time, so it took "c". "d" to "f" wait."""
    partition = side.partition
    lane = AppendLane(side, "t", 0, ProducerId(9), 0)  # type: ignore[arg-type]
    futures = [await lane.append(bytes([97 + n]), 2) for n in range(6)]
    pending, request = _sent(lane)
    lane.answered(pending, *partition.append(*request), "")
    (failed, _), (jumps, request) = _sent(lane), _sent(lane)
    partition.epoch = partition.last_sequence = -1
    partition.remembered.clear()
    lane.answered(failed, code, -1, "")
    assert partition.append(*request) == (0, 2)
    lane.answered(jumps, 0, 2, "")
    return lane, futures


async def _played_out(lane: AppendLane, partition: Partition, futures: list[asyncio.Future[int]]) -> None:
    async with asyncio.timeout(ENOUGH_S):
        while not all(future.done() for future in futures):
            await asyncio.sleep(0)
            while lane.is_ready and lane.has_in_flight is False:
                pending, request = _sent(lane)
                lane.answered(pending, *partition.append(*request), "")


async def test_batches_after_a_reordered_pair_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault: after both acknowledgements, the last of the waiting batches was sent first."""
    monkeypatch.setattr(append_lane, "BACKOFF_MIN_S", 0.0)
    side = FakeAppender(Partition())
    lane, futures = await _jumped(side, TOO_FEW)
    await _played_out(lane, side.partition, futures)
    assert side.partition.log == [b"a", b"c", b"b", b"d", b"e", b"f"]
    assert [
        trouble.message.split(": ")[1] for trouble in side.incidents if "appended before" in trouble.message
    ] == [TAKEN_BEFORE]
    lane.close()


async def test_reordered_batches_get_no_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault: with its offset the log seemed to have lost its end, and a barrier would have denied later
    batches below it."""
    monkeypatch.setattr(append_lane, "BACKOFF_MIN_S", 0.0)
    side = FakeAppender(Partition())
    lane, futures = await _jumped(side, TOO_FEW)
    await _played_out(lane, side.partition, futures)
    offsets = [future.result() for future in futures]
    assert offsets == [0, -1, -1, 6, 8, 10]
    assert [stamp_of(offset) is None for offset in offsets[:4]] == [False, True, True, False]
    assert lane.floor == 12
    lane.close()


async def test_batches_in_an_unknown_order_get_no_offset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(append_lane, "BACKOFF_MIN_S", 0.0)
    lane, futures = await _jumped(FakeAppender(Partition()), TOO_FEW)
    await _ready(lane)
    pending, _ = _sent(lane)
    lane.answered(pending, DUPLICATE, -1, "")
    assert [future.result() for future in futures[:3]] == [0, -1, -1]
    lane.close()


async def test_appended_batch_is_acknowledged_when_its_refused_predecessor_is_dropped() -> None:
    """The fault: it was acknowledged only with the next batch, so an idle source's position did not move."""
    side = FakeAppender(Partition())
    lane, futures = await _jumped(side, TOO_LARGE)
    assert isinstance(futures[1].exception(), BatchRefused)
    assert lane.replace_refused([]) == []
    assert futures[2].done()
    _sent(lane)
    assert not lane.is_ready, "it goes alone: its predecessor is not acknowledged"
    lane.close()
    lane, futures = await _jumped(side := FakeAppender(Partition()), TOO_LARGE)
    lane.replace_refused([])
    await _played_out(lane, side.partition, futures)
    assert side.partition.log == [b"a", b"c", b"d", b"e", b"f"]
    assert [future.result() for future in (futures[0], *futures[2:])] == [0, 2, 4, 6, 8]
    assert side.incidents == [], "no batch changed its place"
    lane.close()


@pytest.mark.parametrize("others", [0, 3])
async def test_doubtful_batches_are_found_in_a_log_that_has_lost_its_end(
    monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """The fault: the lookup began at the former end, where nothing lay any more. If other producers' records
    lie there, the first lookup finds nothing, and later ones begin at the end of that time."""
    log: list[Any] = []
    end, lookups = 60, list[int]()

    async def offsets(at: list[tuple[str, int]], _: int) -> dict[tuple[str, int], int]:
        return dict.fromkeys(at, end)

    async def own(
        _: Any,
        topic: str,
        partition: int,
        producer_id: int,
        start: int,
        known: Any,
        take: Callable[[Any], None],
    ) -> OwnBatches:
        lookups.append(start)
        for header in log:
            if start <= end and header.base_offset >= start:
                take(SimpleNamespace(header=header))
        return OwnBatches(end if start <= end else -1, start, None)

    monkeypatch.setattr(append, "own", own)
    monkeypatch.setattr(append_lane, "BACKOFF_MIN_S", 0.0)
    spec = ClusterSpec("there", ("127.0.0.1:1",))
    cluster: Any = SimpleNamespace(name="there", offsets=offsets, spec=spec)
    lane = AppendLane(Appender(cluster), "t", 0, ProducerId(9), 100)
    future = await lane.append(b"a", 2)

    def unanswered(records_behind: int) -> None:
        nonlocal end
        pending, (_, count, epoch, sequence) = _sent(lane)
        header = SimpleNamespace(
            base_offset=end, producer_epoch=epoch, base_sequence=sequence, record_count=count
        )
        log.append(header)
        end += count + records_behind
        lane.answered(pending, NO_ANSWER, -1, "")

    unanswered(others)
    if others:
        await _ready(lane)
        unanswered(others)
    async with asyncio.timeout(ENOUGH_S):
        assert await future == (65 if others else 60)
    assert lookups == ([100, 63, 63] if others else [100, 60])
    lane.close()


def test_model_partition_forgets_a_duplicate_after_five_batches_as_a_broker_does() -> None:
    partition, sequence = Partition(), 0
    for number in range(6):
        assert partition.append(b"%d" % number, 2, 0, sequence) == (0, 2 * number)
        sequence = next_sequence(sequence, 2)
    assert partition.append(b"1", 2, 0, 2) == (0, 2)
    assert partition.append(b"0", 2, 0, 0) == (OUT_OF_ORDER, -1)
    assert partition.append(b"x", 1, 0, sequence + 1) == (OUT_OF_ORDER, -1)
    assert partition.append(b"x", 1, 1, 0) == (0, 12)
    assert partition.append(b"y", 2, 0, sequence) == (OLD_EPOCH, -1)


async def unexplained(monkeypatch: pytest.MonkeyPatch) -> tuple[Partition, AppendLane, asyncio.Future[int]]:
    """A lane with two batches, whose broker does not explain its first error."""
    monkeypatch.setattr(append_lane, "UNEXPLAINED_S", 0.0)
    monkeypatch.setattr(append_lane, "BACKOFF_MIN_S", 0.0)
    partition = Partition()
    lane = AppendLane(FakeAppender(partition), "t", 0, ProducerId(9), 0)  # type: ignore[arg-type]
    future = await lane.append(b"x", 1)
    await lane.append(b"y", 1)
    return partition, lane, future


async def test_an_unexplained_batch_that_is_in_the_log_after_all_is_no_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partition, lane, future = await unexplained(monkeypatch)
    pending = lane.take()
    assert pending is not None
    partition.append(b"x", 1, lane.producer.epoch, pending.sequence)
    lane.answered(pending, UNKNOWN_SERVER_ERROR, -1, "")
    assert await future == 0, "it was looked up first"
    behind = lane.take()
    assert behind is not None
    assert (behind.data, behind.sequence) == (b"y", 1)


async def test_an_unexplained_batch_that_is_not_in_the_log_is_refused_and_replaced_in_a_new_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, lane, future = await unexplained(monkeypatch)
    pending = lane.take()
    assert pending is not None
    lane.answered(pending, UNKNOWN_SERVER_ERROR, -1, "")
    with pytest.raises(BatchRefused) as refused:
        await future
    assert refused.value.code == UNKNOWN_SERVER_ERROR
    lane.replace_refused([])
    behind = lane.take()
    assert behind is not None
    assert (behind.data, behind.sequence, behind.epoch) == (b"y", 0, pending.epoch + 1)
