"""A lane against a partition that obeys Kafka's rules of sequence numbers and fails at any time.

The real broker's part is in test_append.py; here is what cannot be brought about there: what is
answered late or never, and what arrives after it was given up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.verbatim import SEQUENCES, next_sequence
from app.kafka import append_lane
from app.kafka.append_errors import NO_ANSWER, LaneClosed, Refused
from app.kafka.append_lane import IN_FLIGHT, Lane, Pending
from app.kafka.append_producers import ProducerId

OUT_OF_ORDER, OLD_EPOCH, TOO_LARGE, TOO_FEW, TOO_FEW_AFTER_APPEND, NOT_LEADER = 45, 47, 10, 19, 20, 6
ENOUGH_S = 5.0
LARGE = 100  # a batch of so many records is refused


class Partition:
    """Kafka's ProducerAppendInfo and ProducerStateEntry for one producer id; `log` holds batches."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.headers: list[Any] = []
        self.end = 0
        self.epoch, self.last_sequence = -1, -1
        self.remembered: deque[tuple[int, int, int]] = deque(maxlen=IN_FLIGHT)  # first, count, offset

    def append(self, data: bytes, count: int, epoch: int, first: int) -> tuple[int, int]:
        """Error code and base offset."""
        if count >= LARGE:
            return TOO_LARGE, -1
        if epoch < self.epoch:
            return OLD_EPOCH, -1
        for sequence, found, offset in self.remembered:
            if (sequence, found, epoch) == (first, count, self.epoch):
                return 0, offset
        if epoch != self.epoch:
            if first != 0 and self.epoch != -1:  # of whom it knows nothing, it takes any
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


class Side:
    """What an appender is to its lane."""

    def __init__(self, partition: Partition) -> None:
        self.cluster = SimpleNamespace(name="there")
        self.partition = partition
        self.told: list[Any] = []

    def ready(self, lane: Lane) -> None: ...
    def forget(self, lane: Lane) -> None: ...
    def look_up(self, lane: Lane) -> None:
        found = [header for header in self.partition.headers if header.base_offset >= lane.floor]
        asyncio.get_running_loop().call_soon(lane.looked_up, found)

    def tell(self, trouble: Any) -> None:
        self.told.append(trouble)


Request = tuple[Pending, tuple[bytes, int, int, int]]


async def _play(counts: list[int], choose: Any, first_sequence: int) -> None:
    partition = Partition()
    side = Side(partition)
    lane = Lane(side, "t", 0, ProducerId(9), 0)  # type: ignore[arg-type]
    lane._next_sequence = first_sequence  # the partition knows nothing yet and takes any
    expected: list[bytes] = []
    waiting: deque[tuple[bytes, int, asyncio.Future[int]]] = deque()
    offsets: list[int] = []
    for number, count in enumerate(counts):
        waiting.append((b"%d" % number, count, await lane.append(b"%d" % number, count)))
        expected += [b"%d" % number] if count < LARGE else [b"%d a" % number, b"%d b" % number]
    flying: deque[Request] = deque()  # on the connection, in order
    late: list[Request] = []  # given up, and maybe on its way
    troubles = 12
    while waiting:
        await asyncio.sleep(0)  # timers
        data, count, future = waiting[0]
        if future.done():
            waiting.popleft()
            if isinstance(future.exception(), Refused):
                assert count >= LARGE
                pieces = [(data + b" a", 2), (data + b" b", 2)]
                made = lane.instead(pieces)
                waiting.extendleft(
                    (*piece, found) for piece, found in zip(reversed(pieces), reversed(made), strict=True)
                )
            else:
                offsets.append(future.result())
            continue
        acts = ["send"] * lane.is_ready + ["answer"] * bool(flying)
        if troubles:
            acts += ["fail", "fail after append", "lose"] * bool(flying) + ["late"] * bool(late)
            acts += ["restart"] * bool(flying)  # unnoticed it would be harmless only for what is not old
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
        elif act == "lose":  # the connection: of what was on it the broker works off any part, now or later
            for _ in range(choose(list(range(len(flying) + 1)))):
                partition.append(*flying[0][1])
                late.append(flying.popleft())
                lane.answered(late.pop()[0], NO_ANSWER, -1, "")
            while flying:
                late.append(flying.popleft())
                lane.answered(late[-1][0], NO_ANSWER, -1, "")
        elif act == "late":
            partition.append(*late.pop(0)[1])
        else:  # a broker that starts knows the last batch of a producer, or nothing when its records are old
            late.clear()
            while flying:
                lane.answered(flying.popleft()[0], NO_ANSWER, -1, "")
            while len(partition.remembered) > 1:
                partition.remembered.popleft()
            if choose(["its records are old", "they are new"]) == "its records are old":
                partition.epoch = partition.last_sequence = -1
                partition.remembered.clear()
    for _, request in late:
        partition.append(*request)
    assert partition.log == expected
    known = [offset for offset in offsets if offset >= 0]
    assert known == sorted(set(known))
    assert not side.told  # nothing that was acknowledged got lost
    lane.close()


@given(
    st.lists(st.sampled_from([1, 2, 2, 2, 3, LARGE]), min_size=1, max_size=12),
    st.sampled_from([0, 0, SEQUENCES - 3]),
    st.data(),
)
def test_whatever_fails_every_batch_is_in_the_log_once_and_in_order(
    counts: list[int], first_sequence: int, data: st.DataObject
) -> None:
    """uReplicator reordered by retries: several requests were under way, and one that failed came later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append_lane, "BACKOFF_MIN_S", 0.0)
        asyncio.run(_play(counts, lambda options: data.draw(st.sampled_from(options)), first_sequence))


async def test_a_full_lane_makes_its_sender_wait_and_a_closed_one_lets_it_go() -> None:
    lane = Lane(Side(Partition()), "t", 0, ProducerId(9))  # type: ignore[arg-type]
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


async def test_under_a_further_epoch_nothing_is_sent_before_its_sender_has_written_it_down() -> None:
    """Or a successor takes an epoch that was used: 16 were left to it, whoever needed more was not fenced."""
    bumped: list[ProducerId] = []
    lane = Lane(Side(Partition()), "t", 0, ProducerId(9), 0, bumped=lambda one: bumped.append(one.producer))  # type: ignore[arg-type]
    await lane.append(b"a", LARGE)
    await lane.append(b"b", 1)
    for code in (NO_ANSWER, TOO_LARGE):  # refused, while it may be under way
        pending = lane.take()
        assert pending is not None
        lane.answered(pending, code, -1, "")
        lane.looked_up([])
    lane.instead([(b"a", 1)])
    assert bumped == [ProducerId(9, 1)]
    assert not lane.is_ready
    lane.go()
    assert lane.is_ready
    lane.close()


@pytest.mark.parametrize("takes", [False, True])
async def test_what_a_deposed_leader_may_have_appended_behind_a_refused_batch_keeps_its_number(
    takes: bool,
) -> None:
    """Another batch had it next, in the same epoch: a broker takes that for the one it has. What is in the
    log was sent again, under other numbers."""
    partition = Partition()
    side = Side(partition)
    lane = Lane(side, "t", 0, ProducerId(9), 0)  # type: ignore[arg-type]
    futures = [
        await lane.append(data, count) for data, count in ((b"a", 1), (b"b", LARGE), (b"c", 2), (b"d", 1))
    ]

    def sent() -> tuple[Pending, tuple[bytes, int, int, int]]:
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
    futures += lane.instead([(b"b", 2)])
    assert lane.producer == ProducerId(9, 1)
    async with asyncio.timeout(ENOUGH_S):
        while not all(future.done() for future in futures):
            await asyncio.sleep(0)
            if lane.is_ready and (pending := lane.take()) is not None:
                request = bytes(pending.data), pending.record_count, pending.epoch, pending.sequence
                lane.answered(pending, *partition.append(*request), "")
    assert partition.log == ([b"a", b"c", b"b", b"d"] if takes else [b"a", b"b", b"c", b"d"])
    assert [trouble.message.split(": ")[1] for trouble in side.told] == (
        ["a batch was taken before the one in front of it; none is lost"] if takes else []
    )
    assert isinstance(futures[1].exception(), Refused)
    lane.close()


def test_the_partition_of_this_test_forgets_a_duplicate_after_five_batches_as_a_broker_does() -> None:
    partition, sequence = Partition(), 0
    for number in range(6):
        assert partition.append(b"%d" % number, 2, 0, sequence) == (0, 2 * number)
        sequence = next_sequence(sequence, 2)
    assert partition.append(b"1", 2, 0, 2) == (0, 2)
    assert partition.append(b"0", 2, 0, 0) == (OUT_OF_ORDER, -1)
    assert partition.append(b"x", 1, 0, sequence + 1) == (OUT_OF_ORDER, -1)
    assert partition.append(b"x", 1, 1, 0) == (0, 12)
    assert partition.append(b"y", 2, 0, sequence) == (OLD_EPOCH, -1)
