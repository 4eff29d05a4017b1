"""Measures a copier: its rate, CPU time and memory."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import psutil

from app.dev.demo.stage import Process, StageError
from app.kafka.client.cluster import LATEST, ClusterClient, ClusterSpec

HEAD, TAIL = 0.1, 0.9  # measured between these shares of the records: neither start nor end
POLL_S = 0.02
THERE_S = 180.0  # a Java starts and makes its topics
STALL_S = 60.0
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one copy of a topic.

    Attributes:
        records_per_s: Between HEAD and TAIL.
        cpu_s_per_million: CPU seconds per million records of all processes that copy, between HEAD and TAIL.
        memory_mb: Their largest resident memory from the start to the end.
    """

    records_per_s: float
    cpu_s_per_million: float
    memory_mb: float


async def watch(
    bootstrap: str, topic: str, partitions: int, count: int, process: Process, head: float = HEAD
) -> Figures:
    """Measures until all `count` records are in the copy, from the share `head` of them on.

    Raises:
        StageError: The copier ended or stood still for STALL_S, or the copy has more records than the source.
    """
    client = ClusterClient(ClusterSpec("copies", (bootstrap,)))
    await client.start()
    tree = psutil.Process(process.popen.pid)
    marks: list[tuple[float, int, float]] = []
    most_bytes = copied = 0
    try:
        await wait_partitions(client, topic, partitions, process)
        moved_s = time.monotonic()
        while copied < count:
            await asyncio.sleep(POLL_S)
            if not process.running:
                raise StageError(f"{process.name} ended with {process.popen.returncode}:\n{process.tail()}")
            ends = await client.offsets([(topic, partition) for partition in range(partitions)], LATEST)
            now_s, before = time.monotonic(), copied
            copied = max(copied, sum(ends.values()))
            if copied > before:
                moved_s = now_s
                most_bytes = max(most_bytes, memory_bytes(tree))
            elif now_s - moved_s > STALL_S:
                raise StageError(f"{topic} stands at {copied} of {count} records:\n{process.tail()}")
            if copied >= count * (TAIL if marks else head) and len(marks) < 2:
                marks.append((now_s, copied, cpu_s(tree)))
    finally:
        await client.stop()
    if copied > count:
        raise StageError(f"{topic} has {copied} records, its source {count}")
    (started_s, first, cpu_before), (ended_s, last, cpu_after) = marks
    return Figures(
        (last - first) / (ended_s - started_s),
        (cpu_after - cpu_before) / (last - first) * 1_000_000,
        most_bytes / MB,
    )


async def begins(bootstrap: str, topic: str, partitions: int, process: Process) -> None:
    """Waits until something is in the copy. Raises StageError when nothing comes."""
    client = ClusterClient(ClusterSpec("copies", (bootstrap,)))
    await client.start()
    try:
        await wait_partitions(client, topic, partitions, process)
        deadline_s = time.monotonic() + STALL_S
        at = [(topic, partition) for partition in range(partitions)]
        while not any((await client.offsets(at, LATEST)).values()):
            if time.monotonic() > deadline_s or not process.running:
                raise StageError(f"nothing comes into {topic}:\n{process.tail()}")
            await asyncio.sleep(POLL_S)
    finally:
        await client.stop()


async def wait_partitions(client: ClusterClient, topic: str, partitions: int, process: Process) -> None:
    """Waits until the topic has its partitions. Raises StageError when it does not get them."""
    deadline_s = time.monotonic() + THERE_S
    while await client.partitions(topic) != partitions:
        if time.monotonic() > deadline_s or not process.running:
            raise StageError(f"{topic} is not there:\n{process.tail()}")
        await asyncio.sleep(POLL_S)


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of the process and its children."""
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def memory_bytes(process: psutil.Process) -> int:
    """Resident memory of the process and its children."""
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
