"""Jobs that begin carry over what other regions have finished: once under each role, and bounded in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from app.controllog.events import FailoverRun, RolePut
from app.dispatch.definition import Workload
from app.dispatch.jobs import remote_progress_import as module
from app.dispatch.jobs.remote_progress_import import RemoteProgressImport
from app.kernel.fencing import LogId, TakeoverAnswer
from app.kernel.job import JobId, Kind
from app.kernel.ranges import Snapshot
from app.offsets.model.producer_progress import FinishedOffsets
from app.offsets.sync.remote_progress import ImportedProgress
from app.worker.jobs.start_position import LineageReset, StartPosition
from tests.failover.run.region_fakes import KEY, workload
from tests.worker.runtime.test_job_manager import Log

JOB = JobId(Kind.DISPATCH, KEY, "orders", 0)
LOG = LogId("c", "t")
ENOUGH_S = 150.0


def over(*, lags: bool, reached: int = 0) -> Any:
    return SimpleNamespace(lags=lags, until=9 if lags else 5, reached=reached)


class Pump:
    """A pump that records its calls."""

    def __init__(self, *, holds: bool = False) -> None:
        self.job, self.epoch, self.closed, self.holds = JOB, 3, False, holds
        self.remembered: list[tuple[bytes | None, int]] = []
        self.overs: list[tuple[Any, bool]] = []
        self.undecided, self.longer = 0, list[float]()
        self.remote_progress_filters = [self]

    def hold_longer(self, until_s: float, hold_s: float) -> None:
        assert hold_s == module.BARRIER_LAG_S
        self.longer.append(until_s)

    def remember(self, note: bytes | None, role_epoch: int = -1) -> None:
        self.remembered.append((note, role_epoch))

    def pass_over(self, over: Any, hold_until_s: float | None = None) -> None:
        self.overs.append((over, hold_until_s is not None))

    def resume_held(self) -> bool:
        return self.holds


class Side:
    """Region west with a `RemoteProgressImport` whose source returns `found`."""

    def __init__(self) -> None:
        self.log: Any = Log()
        self.definition = Workload.from_wire(workload().definition)
        self.pumps: dict[str, Any] = {}
        self.replicas: dict[str, Any] = {}
        self.incidents: list[str] = []
        self.found = ImportedProgress()
        self.lookups = 0
        self.looking: asyncio.Event | None = None  # a lookup lasts until this is set
        self.patience: list[tuple[float, ...]] = []
        self.shared = ["east"]
        catalog: Any = SimpleNamespace(workload=lambda _: self.definition)
        remote_progress: Any = SimpleNamespace(
            region="west", others=lambda _: self.shared, imported_progress=self._carried
        )
        self.carrying = RemoteProgressImport(
            self.log,
            catalog,
            self.pumps,
            self.replicas,
            lambda *words: self.incidents.append("; ".join(words[:4])),
            remote_progress,
        )
        self.role(66)

    async def _carried(self, _job: JobId, _workload: Workload, *patience_s: float) -> ImportedProgress:
        self.lookups += 1
        self.patience.append(patience_s)
        if self.looking is not None:
            await self.looking.wait()
        return self.found

    def role(
        self, epoch: int, region: str = "west", state: Any = "active", previous: str = "", plan: str = ""
    ) -> None:
        self.log.apply(
            RolePut(
                at_ms=1, key=KEY, region=region, epoch=epoch, state=state, previous=previous, plan=plan,
                actor="t",
            )
        )  # fmt: skip
        self.log.view.next_offset += 1

    def handed_over(self, *, forced: bool = False) -> None:
        """The role comes from the east, by a failover."""
        self.log.apply(
            FailoverRun(at_ms=1, id="f", to="west", workloads=[], state="executing", forced=forced)
        )
        self.role(130, previous="east", plan="f")

    async def begin(
        self,
        pump: Pump,
        *,
        note: bytes = b"",
        reset: LineageReset | None = None,
        lineage: int = 0,
        log: LogId = LOG,
    ) -> ImportedProgress | None:
        """Starts a job with this pump, as the job manager does."""
        answer = TakeoverAnswer(
            job=str(JOB), epoch=3, worker="w", nonce="n", granted=True, known_epoch=3, log=LOG, note=note,
        )  # fmt: skip
        carried = await self.carrying.imported_progress(JOB, self.definition, answer, reset)
        beginning = StartPosition(Snapshot(5), lineage, log, known=True)
        made: Any = pump
        self.carrying.attach(made, self.definition, answer, beginning, reset, carried)
        self.pumps[str(JOB)] = pump
        return carried


@asynccontextmanager
async def looking(side: Side) -> AsyncIterator[None]:
    await side.carrying.start()
    try:
        yield
    finally:
        await side.carrying.stop()


async def until(condition: Any) -> None:
    async with asyncio.timeout(ENOUGH_S):
        while not condition():  # noqa: ASYNC110 - a task changes it
            await asyncio.sleep(0.01)


async def test_progress_is_looked_up_once_under_each_role_and_not_after_a_reset() -> None:
    side, note = Side(), FinishedOffsets(5, 5, [], 66).to_bytes()
    assert await side.begin(Pump()) == ImportedProgress()
    assert await side.begin(Pump(), note=FinishedOffsets(5, 5, [], 2).to_bytes()) == ImportedProgress()
    assert side.lookups == 2
    for words in ({"note": note}, {"reset": LineageReset(3, 1, 0), "lineage": 1}):
        pump = Pump()
        assert await side.begin(pump, **words) is None  # type: ignore[arg-type]
        assert [epoch for _, epoch in pump.remembered] == [66], "its successors need not look either"
    side.role(130)
    assert await side.begin(Pump(), note=note) == ImportedProgress()
    assert (
        await side.begin(Pump(), note=note, reset=LineageReset(3, 1, 0, "made anew"), lineage=1)
        == ImportedProgress()
    )
    assert side.lookups == 4
    side.shared = []
    pump = Pump()
    assert await side.begin(pump) is None
    assert (side.lookups, pump.remembered) == (4, []), (
        "a job that no other region may take over remembers nothing"
    )


async def test_a_former_owner_s_note_counts_in_its_own_log_and_lineage_only() -> None:
    side, note = Side(), FinishedOffsets(5).to_bytes()
    for words, kept in (
        ({}, note), ({"lineage": 1}, b""), ({"log": LogId("c", "anew")}, b""),
        ({"reset": LineageReset(3, 0, 0, "cut off")}, b""),
    ):  # fmt: skip
        pump = Pump()
        await side.begin(pump, note=note, **words)  # type: ignore[arg-type]
        assert pump.remembered == [(kept, 66)]


async def test_unknown_progress_is_one_incident_with_its_remedy() -> None:
    side = Side()
    for why in (
        "how far east is, is not known; copy it",
        "how far east is, is not known; copy it",
        "no words",
    ):
        side.found = ImportedProgress(why=why)
        await side.begin(Pump())
    assert len(side.incidents) == 2
    assert side.incidents[0].endswith("known in part: how far east is, is not known; copy it")
    assert "known in part: no words; expect" in side.incidents[1]


async def test_a_role_from_another_region_waits_longer_for_its_positions_and_reports_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAP_READ_TIMEOUT_S", 0.05)
    side = Side()
    side.looking = asyncio.Event()
    side.role(130, previous="east")
    beginning = [asyncio.create_task(side.begin(Pump())) for _ in range(2)]
    await until(lambda: side.incidents)
    assert not any(one.done() for one in beginning), "it is waited for"
    assert (
        "the positions of region east cannot be read yet under epoch 130; jobs here begin"
        in side.incidents[0]
    )
    side.looking.set()
    assert await asyncio.gather(*beginning) == [ImportedProgress()] * 2
    assert (side.patience, len(side.incidents)) == ([(module.FAILOVER_READ_TIMEOUT_S,)] * 2, 1)
    side.role(194, previous="west")  # to another failover of this region: it was here all the time
    await side.begin(Pump())
    assert side.patience[2:] == [()]
    # A start that is canceled ends its lookup.
    side.looking.clear()
    side.role(258, previous="east")
    given_up = asyncio.create_task(side.begin(Pump()))
    await until(lambda: len(side.incidents) == 2)
    given_up.cancel()
    await asyncio.wait([given_up])
    assert given_up.cancelled()


@pytest.mark.parametrize(
    ("previous", "why", "counts"),
    [
        ("east", "away; wait", True),
        ("", "away; wait", False),
        ("west", "away; wait", False),
        ("east", "", False),
    ],
)
async def test_messages_that_another_region_may_have_read_are_not_skipped_while_its_progress_is_unknown(
    previous: str, why: str, counts: bool
) -> None:
    side = Side()
    side.role(130, previous=previous)
    side.found = ImportedProgress(why=why)
    assert await side.begin(Pump()) == ImportedProgress(why=why, was_read=counts)


async def test_while_this_copy_lags_new_progress_goes_to_the_pump_until_nothing_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REMOTE_PROGRESS_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(module, "IDLE_RETRY_INTERVAL_S", 1e9)
    side, pump, first = Side(), Pump(holds=True), over(lags=True)
    side.found = ImportedProgress(over=first)
    await side.begin(pump)
    assert pump.overs == [(first, True)], "what is undecided is held back"
    async with looking(side):
        await until(lambda: len(pump.overs) > 2)
        assert set(map(str, pump.overs[1:])) == {str((first, False))}
        side.found = ImportedProgress(over=over(lags=False))
        await until(lambda: pump.overs[-1][0] is side.found.over)
        await until(lambda: not side.carrying._lagging)
        count = side.lookups
        await asyncio.sleep(0.1)
        assert side.lookups == count
    assert side.incidents == []


async def test_the_search_for_progress_ends_after_a_time_and_with_its_pump(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REMOTE_PROGRESS_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(module, "BARRIER_LAG_S", 1.0)
    side = Side()
    side.found = ImportedProgress(over=over(lags=True))
    async with looking(side):
        await side.begin(Pump(holds=True))
        await until(lambda: side.lookups > 2)
        await until(lambda: not side.carrying._lagging)
        gone = Pump()
        await side.begin(gone)
        gone.closed = True
        await until(lambda: not side.carrying._lagging)
        assert len(gone.overs) == 1


async def test_after_an_orderly_handover_a_pump_waits_as_long_as_more_progress_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REMOTE_PROGRESS_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(module, "IDLE_RETRY_INTERVAL_S", 0.01)
    monkeypatch.setattr(module, "BARRIER_LAG_S", 2.0)
    side, pump = Side(), Pump(holds=True)
    side.handed_over()
    side.found = ImportedProgress(over=over(lags=True))
    await side.begin(pump)
    began_s, reached = time.monotonic(), 0
    async with looking(side):
        while time.monotonic() < began_s + 1.5 * module.BARRIER_LAG_S:
            reached += 1
            side.found = ImportedProgress(over=over(lags=True, reached=reached))
            await until(lambda count=reached: len(pump.longer) > count)
        assert str(JOB) in side.carrying._lagging, "it has come nearer all the time"
        pump.undecided = 7
        await until(lambda: not side.carrying._lagging)
        assert time.monotonic() >= pump.longer[-1]
    (incident,) = side.incidents
    assert incident.startswith(f"read-again; {JOB}; up to 7 messages so far")
    assert "region east may have finished them" in incident


async def test_a_forced_failover_holds_nothing_back_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMOTE_PROGRESS_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(module, "BARRIER_LAG_S", 0.3)
    side, pump = Side(), Pump(holds=True)
    side.handed_over(forced=True)
    side.found = ImportedProgress(over=over(lags=True))
    await side.begin(pump)
    pump.undecided = 7
    async with looking(side):
        while side.carrying._lagging:
            side.found = ImportedProgress(over=over(lags=True, reached=side.lookups))
            await asyncio.sleep(0.01)
    assert (pump.longer, side.incidents) == ([], [])


async def test_progress_of_a_topic_does_not_count_once_it_was_recreated() -> None:
    side, pump = Side(), Pump()
    side.found = ImportedProgress(over=over(lags=True), log=LOG)
    await side.begin(pump, log=LogId("c", "anew"))
    assert (pump.overs, side.carrying._lagging) == ([], {})
    await side.begin(pump)
    assert len(pump.overs) == 1


async def test_replicas_into_the_topic_of_an_arriving_role_emit_offset_syncs_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "REMOTE_PROGRESS_POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr(module, "BARRIER_INTERVAL_S", 0.01)
    side, emitted = Side(), list[str]()

    def replica(name: str, cluster: str, topic: str) -> Any:
        definition = SimpleNamespace(spec=SimpleNamespace(target=cluster))
        return SimpleNamespace(
            runtime=SimpleNamespace(definition=definition), target=(topic, 0), high_watermark=9, base=9,
            emit_offset_sync=lambda now_s: emitted.append(name) if now_s <= time.monotonic() else None,
        )  # fmt: skip

    here = side.definition.metadata.cluster
    side.replicas.update(
        right=replica("right", here, "orders"), other=replica("other", here, "payments"),
        north=replica("north", "north", "orders"),
    )  # fmt: skip
    side.role(128, "east")
    async with looking(side):
        await asyncio.sleep(0.1)
        assert emitted == [], "the role is another region's"
        monkeypatch.setattr(module, "FAILOVER_POLL_WINDOW_S", 0.5)
        side.role(130, state="moving")
        await until(lambda: len(emitted) > 1)
        await until(lambda: not side.carrying._taken_s)
        emitted.clear()
        side.role(130)
        await until(lambda: emitted)
        assert set(emitted) == {"right"}
        await until(lambda: not side.carrying._taken_s)
        pump = side.pumps[str(JOB)] = Pump()
        await until(lambda: pump.remembered)
        assert pump.remembered[0] == (None, 130), (
            "a pump from before the group was shared remembers from now on"
        )


async def test_lagging_replicas_emit_offset_syncs_until_they_reach_the_ends_of_their_sources(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "REMOTE_PROGRESS_POLL_INTERVAL_S": 0.01,
        "BARRIER_INTERVAL_S": 0.01,
        "FAILOVER_POLL_WINDOW_S": 0.2,
    }.items():
        monkeypatch.setattr(module, name, value)
    side, emitted_s = Side(), list[float]()
    definition = SimpleNamespace(spec=SimpleNamespace(target=side.definition.metadata.cluster))
    replica = SimpleNamespace(
        runtime=SimpleNamespace(definition=definition), target=("orders", 0), high_watermark=50, base=9,
        emit_offset_sync=emitted_s.append,
    )  # fmt: skip
    side.replicas["it"] = replica
    async with looking(side):
        await until(lambda: emitted_s and not side.carrying._taken_s)
        replica.high_watermark = 90  # no region has finished records that are written from now on
        emitted_s.clear()
        await until(lambda: len(emitted_s) > 5)
        replica.base = 50
        await until(lambda: not side.carrying._behind)
        emitted_s.clear()
        await asyncio.sleep(0.1)
        assert emitted_s == []
