"""Shared by all streams: their limits, the gate before asynchronous handlers, and the parsing of messages."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from switchyard.receiver.delivery_time import DeliveryTime
from switchyard.receiver.trace_context import derived_traceparent, own_traceparent
from switchyard.receiver.verdicts import Message, RegionRole
from switchyard.v1.receiver_pb2 import Batch, Open, Role

SLICE_S = 0.005  # then the loop runs other tasks


@dataclass(frozen=True, slots=True)
class AdmissionWindow:
    """The limits of a stream: deliveries and bytes in flight, and bytes of one request."""

    deliveries: int
    size: int
    max_request_bytes: int


class PendingWork(Protocol):
    """Work that waits for a task."""

    async def run(self) -> None:
        """Does the work. Raises only when the task itself is cancelled."""


class TaskGate:
    """Runs at most `limit` tasks at once, over all streams.

    A finished task takes the next waiting work, in order. A new task would begin two turns of the loop later,
    and cost as much as a fast handler. All tasks together use at most `SLICE_S` of a turn before others run.
    Handlers that await something lose nothing by that.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running = 0
        self._waiting: deque[PendingWork] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._until_s = 0.0  # the end of our part of this turn of the loop; 0: the turn has just begun

    def enter(self, work: PendingWork) -> None:
        """Starts the work once a task is free."""
        if self.running >= self.limit:
            self._waiting.append(work)
            return
        self.running += 1
        task = asyncio.get_running_loop().create_task(self._run_pending(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_pending(self, work: PendingWork) -> None:
        try:
            while True:
                await work.run()
                if not self._waiting:
                    return
                work = self._waiting.popleft()
                if self._is_over():
                    await asyncio.sleep(0)
        finally:
            self.running -= 1

    def _is_over(self) -> bool:
        """Whether the tasks have used their part of this turn of the loop."""
        now_s = perf_counter()
        if self._until_s:
            return now_s > self._until_s
        self._until_s = now_s + SLICE_S
        asyncio.get_running_loop().call_soon(self._begin_turn)
        return False

    def _begin_turn(self) -> None:
        self._until_s = 0.0


class Violation(Exception):
    """The sender breaks the contract."""


def read_role(role: Role) -> RegionRole | None:
    """None: the workload belongs to one region."""
    return RegionRole(role.region, role.primary, role.epoch) if role.region else None


def read_batch(
    batch: Batch, opened: Open, role: RegionRole | None = None, time: DeliveryTime | None = None
) -> list[Message]:
    """The messages of a batch."""
    topic, group = batch.topic or opened.topic, opened.group
    partition, offset, timestamp_ms = batch.partition, batch.base_offset, batch.base_timestamp_ms
    retry_count, attempt, traceparent = batch.retry_count, batch.attempt or 1, batch.traceparent
    messages = []
    for number, sent in enumerate(batch.messages, batch.first_delivery):
        key: bytes | None = sent.key
        if not key and not sent.HasField("key"):
            key = None
        value, headers, own = sent.value, [], traceparent
        at, sent_ms = offset + sent.offset_delta, timestamp_ms + sent.timestamp_delta_ms
        if len(sent.headers):
            headers = [(header.name.lower(), header.value) for header in sent.headers]
            own = own_traceparent(headers) or traceparent
        own = own or derived_traceparent(topic, partition, at, sent_ms)
        messages.append(
            Message(
                topic, group, value, partition, at, key, headers, sent_ms, retry_count, attempt, own,
                not value and not sent.HasField("value"), role, time, number,
            )
        )  # fmt: skip
    return messages
