"""The job manager retries a job that cannot start, and releases it when the leader asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from app.audit.definition import AuditPlan
from app.audit.pump.counting_spec import open_times
from app.controllog.events import AnyControlEvent, Assignment, Claim, Released
from app.controllog.state import ControlState
from app.kafka.fetch.deliveries import ByteBudget, FetchedBatches, FetchKey, PartitionFetch
from app.kernel.job import JobId
from app.kernel.lease import Lease
from app.kernel.troubles import Troubles
from app.payload.schema_loader import SchemaLoader
from app.worker.catalog import Catalog
from app.worker.jobs.failures import JobFailures
from app.worker.jobs.kind import JobPorts
from app.worker.readable_definitions import ReadableDefinitions
from app.worker.runtime.job_kinds import JobServices, make_job_kinds
from app.worker.runtime.job_manager import JobManager
from app.worker.runtime.job_starter import START_RETRY_S, JobStarter
from tests.audit.api.plans import plan as audit_plan
from tests.web.runtime_fake import Alone, definition, put

JOB = "dispatch:billing/orders:orders:0"
ENOUGH_S = 150.0


class Log:
    """A fake control log: an appended event counts at once."""

    def __init__(self) -> None:
        self.view, self.worker = ControlState(), ""
        self.appended: list[AnyControlEvent] = []
        self._listeners: list[Callable[[], None]] = []
        self.apply(Claim(at_ms=0, term=1, worker="leader"))

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def apply(self, *events: AnyControlEvent) -> None:
        for event in events:
            self.view.next_offset += 1
            self.view.apply(event)
        for listener in self._listeners:
            listener()

    async def append(self, *events: AnyControlEvent) -> int:
        self.appended += events
        self.apply(*events)
        return 0


class Away:
    """Clusters that cannot be reached; `tries` counts the attempts."""

    def __init__(self, *names: str) -> None:
        self.specs = dict.fromkeys(names)
        self.tries = 0

    async def get(self, name: str) -> Any:
        self.tries += 1
        raise ConnectionError(f"{name} does not answer")

    def started(self) -> list[Any]:
        return []


def assigned(*, release: bool = False) -> Assignment:
    return Assignment(at_ms=0, job=JOB, worker="me", epoch=1, term=1, reason="", release=release)


@asynccontextmanager
async def managed(log: Log, clusters: Away) -> AsyncIterator[tuple[JobManager, list[str]]]:
    """A running job manager, and the messages of its incidents."""
    reported: list[str] = []
    fake_log: Any = log
    fake: Any = clusters
    unused: Any = None

    def report(_kind: str, _subject: str, message: str, *_: object) -> None:
        reported.append(message)

    catalog = Catalog(fake_log, fake, report, ReadableDefinitions(fake_log, report), Alone())
    ports = JobPorts("me", fake_log, fake, Lease(2.0), report, SchemaLoader(Path("schemas")), JobFailures())
    jobs = JobManager(
        ports, unused, lambda jobs: make_job_kinds(ports, jobs, catalog, JobServices()), grace_s=1.0
    )
    await jobs.start()
    try:
        yield jobs, reported
    finally:
        async with asyncio.timeout(ENOUGH_S):
            await jobs.stop()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(ENOUGH_S):
        while not condition():  # noqa: ASYNC110 - callbacks change it
            await asyncio.sleep(0.01)


async def test_a_job_with_an_unreadable_definition_is_tried_each_second_and_says_why() -> None:
    log, looks = Log(), 0
    async with managed(log, Away("east")) as (jobs, reported):
        lookup = jobs.kinds.dispatch._catalog.workload

        def counted(key: str) -> Any:
            nonlocal looks
            looks += 1
            return lookup(key)

        jobs.kinds.dispatch._catalog.workload = counted  # type: ignore[method-assign]
        log.apply(assigned())
        began_s = time.monotonic()
        for _ in range(100):  # every change of the log makes the manager look again
            log.apply()
            await asyncio.sleep(0.005)
        await until(lambda: reported)
        assert looks <= 3 + (time.monotonic() - began_s) / START_RETRY_S
        assert "no definition of billing/orders" in reported[0]
        assert "no definition" in jobs.statuses()[0].trouble


async def test_a_job_that_cannot_start_is_released_when_the_leader_asks() -> None:
    log = Log()
    log.apply(put(definition()), assigned())
    async with managed(log, Away("east")) as (jobs, reported):
        await until(lambda: reported)
        log.apply(assigned(release=True))
        await until(lambda: log.appended)
        assert [type(event) for event in log.appended] == [Released]
        assert log.view.owner(JOB) is None
        await until(lambda: not jobs.statuses())


@pytest.mark.parametrize(
    ("timestamp", "message"),
    [
        ({"source": "json", "field": 'x"ts'}, "a key holds a quote"),  # earlier versions accepted it
        ({"source": "avro", "field": "ts", "schema": "gone.avsc"}, "gone.avsc"),
        ({"source": "protobuf", "field": "ts", "descriptor": "gone.binpb", "message": "a.B"}, "gone.binpb"),
    ],
)
async def test_a_job_of_a_stored_plan_with_an_unusable_time_says_what_to_deploy(
    timestamp: dict[str, Any], message: str
) -> None:
    incidents: list[tuple[str, ...]] = []
    plan = AuditPlan.model_validate(audit_plan(timestamp=timestamp))
    schemas, nothing = SchemaLoader(Path("schemas")), cast("Any", None)

    async def check(_: JobId) -> None:
        await open_times(plan, schemas)

    kinds: Any = SimpleNamespace(of=lambda _: SimpleNamespace(check=check))
    starter = JobStarter("me", nothing, nothing, lambda *fields: incidents.append(fields[:4]), kinds)
    job = "audit:all/east:orders:0"
    starting = asyncio.create_task(starter.start(job, assigned()))
    await until(lambda: incidents)
    starting.cancel()
    ((kind, subject, problem, remedy),) = incidents
    assert (kind, subject, message in problem) == ("job-cannot-start", job, True)
    assert remedy == "deploy the definition with a field or schema that this worker can read"


async def test_a_start_that_fails_for_a_moment_is_a_trouble_and_no_incident(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.worker.runtime.job_starter.START_RETRY_S", 0.01)
    incidents: list[tuple[Any, ...]] = []
    tries = 0

    async def check(_: JobId) -> None:
        nonlocal tries
        tries += 1
        raise LookupError("no leader of orders-0 answers")

    nothing = cast("Any", None)
    kinds: Any = SimpleNamespace(of=lambda _: SimpleNamespace(check=check))
    starter = JobStarter("me", nothing, nothing, lambda *fields: incidents.append(fields), kinds)
    starting = asyncio.create_task(starter.start(JOB, assigned()))
    await until(lambda: tries > 2)
    assert (incidents, starter.troubles[JOB]) == ([], "no leader of orders-0 answers")
    monkeypatch.setattr("app.worker.runtime.job_starter.START_TROUBLE_S", 0.0)
    await until(lambda: incidents)
    starting.cancel()
    ((kind, *_, is_over),) = incidents
    assert (kind, is_over()) == ("job-cannot-start", False)
    starter.keep([])  # it is another worker's now
    assert is_over()


async def test_a_job_of_a_cluster_that_is_not_configured_here_says_so() -> None:
    log = Log()
    log.apply(put(definition()), assigned())
    clusters = Away("west")
    async with managed(log, clusters) as (_, reported):
        await until(lambda: reported)
        assert reported == ["cluster 'east' is not in this worker's configuration"]
        assert clusters.tries == 0


async def test_a_job_that_cannot_start_is_released_under_its_latest_epoch() -> None:
    log = Log()
    log.apply(put(definition()), assigned())
    async with managed(log, Away("east")) as (_, reported):
        await until(lambda: reported)
        again = msgspec.structs.replace(assigned(), epoch=2)
        log.apply(again, msgspec.structs.replace(again, release=True))
        await until(lambda: log.appended)
        released = log.appended[0]
        assert isinstance(released, Released)
        assert released.epoch == 2


async def test_a_stopping_worker_releases_new_jobs_without_starting_them() -> None:
    log, clusters = Log(), Away("east")
    log.apply(put(definition()))
    async with managed(log, clusters) as (jobs, _):
        await jobs.drain_all()
        log.apply(assigned())
        await until(lambda: log.appended)
        assert [type(event) for event in log.appended] == [Released]
        assert log.view.owner(JOB) is None
        assert clusters.tries == 0


async def test_a_job_that_could_not_start_is_released_once_at_the_stop() -> None:
    log = Log()
    log.apply(put(definition()), assigned())
    async with managed(log, Away("east")) as (jobs, reported):
        await until(lambda: reported)
        await jobs.drain_all()
        assert [type(event) for event in log.appended] == [Released]
        assert log.view.owner(JOB) is None


async def test_a_moved_job_is_closed_when_the_assignment_is_read() -> None:
    log, closed = Log(), []
    async with managed(log, Away("east")) as (jobs, _):
        log.apply(assigned())
        pump: Any = SimpleNamespace(job=JobId.parse(JOB), epoch=1, close=lambda: closed.append(JOB))
        jobs.kinds.dispatch.pumps[JOB] = pump
        log.apply(msgspec.structs.replace(assigned(), worker="other", epoch=2))
        assert closed == [JOB], "no other task has had a turn in between"
        assert jobs.kinds.dispatch.pumps == {}


async def test_an_error_at_a_batch_of_the_backlog_stops_only_this_job_and_frees_the_batch() -> None:
    log, closed, budget = Log(), list[str](), ByteBudget(100)

    def pump_of(job: str) -> Any:
        def fails(_: Any) -> None:
            raise ZeroDivisionError("nobody foresaw it")

        backlog = SimpleNamespace(epoch=1, accept=fails)
        return SimpleNamespace(
            job=JobId.parse(job), epoch=1, closed=False, troubles=Troubles(), version=0, snapshot_version=0,
            close=lambda: closed.append(job),
            backlog=SimpleNamespace(pump=backlog), accept=lambda fetched: fetched.release(),
        )  # fmt: skip

    def fetched(key: FetchKey) -> FetchedBatches:
        budget.used_bytes += 10
        return FetchedBatches(PartitionFetch(budget, key, "orders", 0, 0), 10, b"", 1, [], 1)

    async with managed(log, Away("east")) as (jobs, _):
        pumps: dict[str, Any] = jobs.kinds.dispatch.pumps  # type: ignore[assignment]
        other = JOB.replace(":0", ":1")
        pumps |= {JOB: pump_of(JOB), other: pump_of(other)}
        jobs.kinds.dispatch.accept(fetched(FetchKey(JOB, 1, is_backlog=True)))
        assert (closed, list(pumps), budget.used_bytes) == ([JOB], [other], 0)
        jobs.kinds.dispatch.accept(fetched(FetchKey(other, 2)))
        assert (closed, budget.used_bytes) == ([JOB], 0), "of another epoch: it is freed, and nothing stops"
        pumps.clear()
