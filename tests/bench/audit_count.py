"""Records of 200 bytes that an auditor counts a second, from batches of a real broker and from memory.

| row                                              | ours                       | peer                     |
|--------------------------------------------------|----------------------------|--------------------------|
| broker                                           | fetch service, audit pump  | the fetch service alone  |
| memory: batches of 16 KB, 64 KB, of one record   | the pump's reader          | every record decoded     |

Each row has two variants: by the timestamps of all records, and by headers alone (`disorder: 5s` of a plan).

The path is a worker's without its Faust channel, which carries a chunk of 1 MiB at a time. Rates are per
second of the process's CPU time, so other processes do not distort them; one row has rates by the clock.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import uvloop
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from app.audit.counts.counter import ANY_DISORDER, CountingSpec
from app.audit.counts.handover import CountsFrom
from app.audit.counts.partition_counter import PartitionReader
from app.audit.definition import AuditPlan
from app.audit.pump.partition import AuditPorts, AuditPump
from app.dev.yard import Yard
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.fetch.decoder import lowest_timestamp, records_of
from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches
from app.kafka.fetch.service import FetchService
from app.kafka.records.batch import iter_batches
from app.kernel.fencing import LogId
from app.kernel.job import JobId
from app.kernel.ranges import Snapshot
from app.worker.jobs.start_position import StartPosition
from switchyard.audit.model.fingerprint import FingerprintSource
from switchyard.audit.model.reports import Report, Scope
from tests.bench.copying.topic import PARTITIONS, Shape, fill
from tests.bench.run import Pair, Progress, alternate

CLUSTER = "east-regional"
SHAPE = Shape(200, "none", 16 * 1024, 4_000_000)
CHUNK_BYTES = 1 << 20
OF_MEMORY = {"batches of 16 KB": 16 * 1024, "batches of 64 KB": 64 * 1024, "one record a batch": 0}
PROMISES = {"all timestamps read": ANY_DISORDER, "by headers": 5_000}
MEMORY_COUNT = {16 * 1024: 1_000_000, 64 * 1024: 1_000_000, 0: 50_000}
WIDTH_MS = 600_000
BUDGET_BYTES = 64 << 20
NOW_MS = 1_795_335_887_000
ROUNDS = 5
END_S = 60.0


def run(progress: Progress) -> dict[str, Any]:
    """Every row."""
    rows = []
    for title, batch_bytes in OF_MEMORY.items():
        chunks = _chunks(batch_bytes, MEMORY_COUNT[batch_bytes])
        for words, disorder_ms in PROMISES.items():
            progress(f"of memory, {title}, {words}")
            counted = partial(_counted, chunks, disorder_ms)
            pair = alternate(counted, partial(_decoded, chunks), ROUNDS, progress)
            rows.append(_row(f"of memory, {title}, {words}", "records decoded", pair))
    with Yard(regions=1) as yard:
        bootstrap = yard.bootstrap(CLUSTER)
        progress(f"filling a topic: {SHAPE.title}")
        asyncio.run(fill(bootstrap, SHAPE))
        clock = list[float]()

        def ours() -> float:
            figures = uvloop.run(_fetched(bootstrap, "any"))
            clock.append(figures[1])
            return figures[0]

        alone = partial(_per_cpu_of, bootstrap, "")
        pair = alternate(ours, alone, 3, progress)
        by_headers = alternate(partial(_per_cpu_of, bootstrap, "5s"), alone, 3, progress)
    first = _row("of a broker", "fetched, and not counted", pair)
    rows.insert(0, _row("of a broker, by headers", "fetched, and not counted", by_headers))
    by_clock = {
        **_row("of a broker, by the clock", "the target", pair),
        "unit": "records/s", "value": round(sorted(clock)[len(clock) // 2]), "peer_value": 1_000_000,
        "ratio": round(sorted(clock)[len(clock) // 2] / 1_000_000, 3),
    }  # fmt: skip
    setup = {
        "broker": "one, same machine, shared", "partitions": PARTITIONS, "batches": SHAPE.title,
        "records": SHAPE.count, "window": "10 min",
    }  # fmt: skip
    return {**{key: first[key] for key in first if key != "bench"}, "setup": setup, "rows": [by_clock, *rows]}


def _row(title: str, peer: str, pair: Pair) -> dict[str, Any]:
    return {
        "bench": f"audit-count, {title}", "value": round(pair.ours), "unit": "records/CPU s",
        "peer": peer, "peer_value": round(pair.peer), "ratio": round(pair.ratio, 3),
    }  # fmt: skip


# -- of memory -----------------------------------------------------------------------------------------


def _chunks(batch_bytes: int, count: int) -> list[tuple[bytes, int]]:
    """Chunks as a broker returns them, with their end offsets; timestamps are 0.1 ms apart."""
    found, chunk, offset = [], bytearray(), 0
    while offset < count:
        builder, size = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, batch_bytes or 1), 0
        while offset + size < count:
            at_ms = NOW_MS + (offset + size) // 10
            if builder.append(size, timestamp=at_ms, key=None, value=b"x" * 200, headers=[]) is None:
                break
            size += 1
            if not batch_bytes:
                break
        batch = builder.build()
        batch[:8] = offset.to_bytes(8, "big")
        chunk += batch
        offset += size
        if len(chunk) >= CHUNK_BYTES or offset >= count:
            found.append((bytes(chunk), offset))
            chunk.clear()
    return found


def _per_cpu_s(work: Callable[[], int]) -> float:
    began_s = time.process_time()
    count = work()
    return count / (time.process_time() - began_s)


def _counted(chunks: list[tuple[bytes, int]], disorder_ms: int) -> float:
    source = FingerprintSource("c", "t", 0)
    scope = Scope("orders", "regional", "east", WIDTH_MS)
    how = CountingSpec(records_of, source, disorder_ms=disorder_ms, lowest=lowest_timestamp)

    def work() -> int:
        reader = PartitionReader(scope, source, how, 0)
        for data, end in chunks:
            reader.fetched(data, end, at_ms=NOW_MS, seen_at_ms=NOW_MS + 1_000_000)
        return reader.records

    return _per_cpu_s(work)


def _decoded(chunks: list[tuple[bytes, int]]) -> float:
    def work() -> int:
        windows: Counter[int] = Counter()
        for data, _ in chunks:
            for batch in iter_batches(data):
                windows.update(one.timestamp - one.timestamp % WIDTH_MS for one in records_of(batch))
        return windows.total()

    return _per_cpu_s(work)


# -- of a broker ---------------------------------------------------------------------------------------


def _per_cpu_of(bootstrap: str, disorder: str) -> float:
    return uvloop.run(_fetched(bootstrap, disorder))[0]


async def _fetched(bootstrap: str, disorder: str) -> tuple[float, float]:
    """Records of the whole topic a second of CPU time, and of the clock. `disorder` is the plan's; "" counts
    nothing."""
    client = ClusterClient(ClusterSpec("east", (bootstrap,)))
    await client.start()
    pumps = {number: _pump(number, disorder or "any") for number in range(PARTITIONS)}
    ends, done = dict.fromkeys(pumps, 0), asyncio.Event()

    async def deliver(item: Any) -> None:
        assert isinstance(item, FetchedBatches), item
        ends[item.partition] = item.next_offset
        if disorder:
            pumps[item.partition].accept(item)
        else:
            item.release()
        if sum(ends.values()) >= SHAPE.count:
            done.set()

    service = FetchService(client, deliver, ByteBudget(BUDGET_BYTES))
    await service.start()
    began_s, cpu_s = time.monotonic(), time.process_time()
    for number in pumps:
        service.add(number, SHAPE.topic, number, 0)
    async with asyncio.timeout(END_S):
        await done.wait()
    cpu_s, clock_s = time.process_time() - cpu_s, time.monotonic() - began_s
    await service.stop()
    await client.stop()
    if disorder:
        counted = sum(sum(one.totals.count for one in _reported(pump)) for pump in pumps.values())
        assert counted == SHAPE.count, f"{counted} of {SHAPE.count} records were counted"
    return SHAPE.count / cpu_s, SHAPE.count / clock_s


def _pump(partition: int, disorder: str) -> AuditPump:
    plan = AuditPlan.model_validate(
        {"apiVersion": "switchyard/v1", "kind": "AuditPlan", "metadata": {"name": "all"},
         "spec": {"topics": [SHAPE.topic], "disorder": disorder}}
    )  # fmt: skip

    async def send(_: AuditPump) -> None: ...

    job = JobId.parse(f"audit:all//east:{SHAPE.topic}:{partition}")
    start = StartPosition(Snapshot(0), 0, LogId("c", "t"), known=False)
    counts, ports = CountsFrom(0, None, is_cut=False), AuditPorts(lambda *_: None, send)
    return AuditPump(job, 1, plan, "regional", start, counts, ports)


def _reported(pump: AuditPump) -> list[Any]:
    """The parts of the pump's reports, with the last one, which is still open."""
    reports: list[Report] = pump.reports(NOW_MS, 0.0)
    return [window for report in reports for window in report.windows]
