"""A batch that breaks its job repeatedly is dead-lettered as it is, and all messages around it are
delivered.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.dispatch.model.retry_headers import RAW_BATCH
from app.dispatch.pump.intake import READY_LOW, MessageIntake
from app.dispatch.pump.partition import DispatchPump
from app.kafka.fetch.deliveries import FetchedBatches, FetchKey, PartitionFetch
from app.kernel.fencing import LogId
from app.kernel.job import JobId
from app.kernel.ranges import Snapshot
from app.worker.jobs.failures import MOST_FAILURES
from tests.dispatch.pump.rig import dispatch_rig, start_at
from tests.kafka.records.batches import make_batch
from tests.web.runtime_fake import definition, put
from tests.worker.runtime.test_job_manager import Away, Log, assigned, managed, until

POISON = b"poison", b"another"
BEFORE = 2 * READY_LOW  # a batch of this many waits undecoded until those before it are sent


@pytest.mark.parametrize("has_queue", [True, False])
async def test_unforeseen_batches_affect_no_other_batch(
    monkeypatch: pytest.MonkeyPatch, has_queue: bool
) -> None:
    register, broken = MessageIntake._register, 0

    def breaks(self: MessageIntake, records: list[Any], cost_bytes: int) -> None:
        nonlocal broken
        if any(one.value in POISON for one in records):
            broken += 1
            raise ZeroDivisionError("nobody foresaw it")
        register(self, records, cost_bytes)

    monkeypatch.setattr(MessageIntake, "_register", breaks)
    good = [b"%d" % at for at in range(BEFORE)]
    rows = [good, [POISON[0], b"beside it"], [POISON[1]], [b"behind", b"last"]]
    starts, end = [0, BEFORE, BEFORE + 2, BEFORE + 3], BEFORE + 5
    response = b"".join(
        make_batch(at, [(None, one) for one in row]) for at, row in zip(starts, rows, strict=True)
    )
    taken, started, log = list[bytes | None](), list[DispatchPump](), Log()
    async with (
        dispatch_rig(lambda one: taken.append(one.value)) as rig,
        managed(log, Away("east")) as (jobs, reported),
    ):
        rig.run(dlq={"enabled": has_queue})

        async def begin(job: str, _: Any) -> Any:
            snapshot = started[-1].snapshot() if started else Snapshot(0)
            pump = DispatchPump(JobId.parse(job), 1, rig.runtime, start_at(0, snapshot), tier=None)
            pump.tracker.capacity = 100
            started.append(pump)
            rig.pumps.append(pump)
            jobs.kinds.dispatch.add(pump)
            part = PartitionFetch(rig.budget, FetchKey(job, 1), "orders", 0, 0)
            fetched = FetchedBatches(part, len(response), response, end, [], end)
            start = SimpleNamespace(log=LogId(), known=True, snapshot=snapshot, gap=None)
            loop = asyncio.get_running_loop()
            return SimpleNamespace(
                pump=pump, start=start, fetch=lambda: loop.call_soon(jobs.kinds.dispatch.accept, fetched)
            )

        monkeypatch.setattr(jobs._starter, "start", begin)
        log.apply(put(definition()), assigned())
        wanted = {*rows[0], *rows[3]}
        await until(lambda: wanted <= set(taken))
        assert (broken, len(started)) == (2 * MOST_FAILURES, 2 * MOST_FAILURES + 1)
        assert set(taken) == wanted
        failures = [one for one in reported if one.startswith("its job")]
        for at, words in zip(starts[1:3], failures, strict=True):
            assert words.startswith(f"its job failed {MOST_FAILURES} times at offset {at}: ZeroDivisionError")
        if not has_queue:
            await until(lambda: started[-1].snapshot() == Snapshot(BEFORE, ((BEFORE + 3, end),)))
            return
        await until(lambda: started[-1].snapshot() == Snapshot(end))
        letters = {headers[RAW_BATCH]: raw for topic, _, raw, headers in rig.copied.records}
        assert letters.keys() == {b"%d-%d" % (BEFORE, BEFORE + 2), b"%d-%d" % (BEFORE + 2, BEFORE + 3)}
        assert all(any(one in (raw or b"") for one in POISON) for raw in letters.values())
