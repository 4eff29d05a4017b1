"""The console over a fake runtime: the real state, members, lease, handlers and server, without Kafka.

An event for the control log is applied to the state at once, and kept in `appended`.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import ChainMap, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from aiohttp import web

from app.alerts.delivery.monitor import AlertMonitor
from app.audit.jobs.books import AuditBooks, PlannedCounts
from app.audit.jobs.region_query import RegionQuery
from app.config.receiver_rules import ReceiverRules
from app.config.web_address import Web
from app.controllog.codec import (
    HeadDecision,
    HeadStatus,
    Heartbeat,
    IncidentRecord,
    JobStatus,
    WorkloadStatus,
)
from app.controllog.events import AnyControlEvent, Assignment, RoutePut, WorkloadPut
from app.controllog.incident_log import IncidentLog
from app.controllog.state import ControlState
from app.dispatch.definition import Workload
from app.dispatch.model.throughput_diagnosis import EndpointStatus, TargetStatus
from app.dispatch.push.metadata import SenderRole
from app.failover.run.participant import FailoverParticipant, FailoverPorts
from app.failover.run.presence import Presence
from app.failover.topology import Layout, Site
from app.grpc_client.credentials import Credentials, PemFiles
from app.grpc_client.tokens import TokenFile, Tokens
from app.kernel.broker_throttle import BrokerThrottle
from app.kernel.clock import clock, now_ms
from app.kernel.job import JobId, Kind
from app.kernel.lease import Lease
from app.kernel.tracker import Tracker
from app.kernel.troubles import Troubles
from app.payload.schema_loader import SchemaLoader
from app.replicate.definition import RouteDefinition
from app.web.console import server
from app.worker.catalog import Catalog
from app.worker.jobs.failures import JobFailures
from app.worker.jobs.kind import JobPorts
from app.worker.members.host_clock import HostClock
from app.worker.members.membership import Members
from app.worker.readable_definitions import ReadableDefinitions
from app.worker.runtime.cgroups import ContainerSample
from app.worker.runtime.container_watch import ContainerWatch
from app.worker.runtime.disk_watch import DiskWatch
from app.worker.runtime.job_kinds import JobServices, make_job_kinds
from app.worker.runtime.loop_watch import LoopWatch
from app.worker.runtime.open_files import OpenFilesWatch
from app.worker.runtime.save_watch import SaveWatch
from app.worker.runtime.service import Runtime
from app.worker.tracker.write_health import WriteHealth

ME = "worker-a"
ENOUGH_S = 150.0
LAYOUT = Layout(
    "east",
    {
        "east": Site("east", "aggregate"), "west": Site("west", "aggregate"),
        "east-regional": Site("east", "regional"), "west-regional": Site("west", "regional"),
    },
    "east-regional",
)  # fmt: skip


def definition(group: str = "billing", topic: str = "orders", **spec: Any) -> dict[str, Any]:
    """A workload's definition that is valid where the cluster "east" is known."""
    target = {"address": "127.0.0.1:50051"}
    return {
        "apiVersion": "switchyard/v1",
        "kind": "Workload",
        "metadata": {"group": group, "topic": topic, "cluster": "east"},
        "spec": {"target": target, **spec},
    }


def put(data: dict[str, Any]) -> WorkloadPut:
    """The event that deploys the workload."""
    workload = Workload.model_validate(data)
    return WorkloadPut(
        at_ms=1, key=workload.key, definition=workload.to_wire(), etag=workload.etag(), actor="test"
    )


def route(
    name: str = "mirror", source: str = "east", target: str = "west", *topics: str, **spec: Any
) -> dict[str, Any]:
    """A route's definition that is valid where its clusters are known."""
    return {
        "apiVersion": "switchyard/v1", "kind": "Route", "metadata": {"name": name},
        "spec": {"from": source, "to": target, "topics": list(topics or ("orders",)), **spec},
    }  # fmt: skip


def put_route(data: dict[str, Any]) -> RoutePut:
    """The event that deploys the route."""
    made = RouteDefinition.model_validate(data)
    return RoutePut(at_ms=1, key=made.key, definition=made.to_wire(), etag=made.etag(), actor="test")


def copying(partition: int, topic: str = "orders", name: str = "mirror") -> str:
    """A replicate job's name."""
    return str(JobId(Kind.REPLICATE, name, topic, partition))


def job(partition: int, topic: str = "orders", key: str = "billing/orders") -> str:
    """A dispatch job's name."""
    return str(JobId(Kind.DISPATCH, key, topic, partition))


class Alone:
    """The roles of a region that is alone: everything runs here."""

    def runs_here(self, _: Workload) -> bool | None:
        return True

    def sender_role(self, _: Workload) -> SenderRole | None:
        return None


def assigned(name: str, worker: str = ME, epoch: int = 1, reason: str = "") -> Assignment:
    """The assignment of the job `name` to `worker`."""
    return Assignment(at_ms=1, job=name, worker=worker, epoch=epoch, term=0, reason=reason)


def flowing(name: str, epoch: int = 1, **fields: Any) -> JobStatus:
    """A job whose offsets are known."""
    known = {"committed": 10, "fetched": 30, "high_watermark": 40, "oldest_ms": -1} | fields
    return JobStatus(**{"job": name, "epoch": epoch, "state": "flowing"} | known)


def beat(
    *jobs: JobStatus,
    worker: str = ME,
    url: str = "http://127.0.0.1:1",
    breaker: str = "closed",
    **fields: Any,
) -> Heartbeat:
    """A heartbeat of a worker that runs `jobs`; `fields` are further fields of their workloads."""
    parsed = [JobId.parse(status.job) for status in jobs]
    keys = sorted({one.name for one in parsed if one.kind is Kind.DISPATCH})
    receivers = [WorkloadStatus(key=key, breaker=breaker, in_flight=0, limit=100, **fields) for key in keys]
    return Heartbeat(worker=worker, at_ms=1, started_ms=1, url=url, state="running", term=0, jobs=list(jobs),
                     workloads=receivers)  # fmt: skip


def in_trouble(text: str = "") -> dict[str, Any]:
    """Status fields of a workload with every trouble at once; `text` stands in each free text."""
    at = {"topic": "orders", "partition": 0}
    away = TargetStatus(
        address=f"billing-test:443{text}", contract="stream", breaker="open", why_open=f"found nobody {text}",
        probe_in_ms=700, limit=8, ceiling=500, phase="hold", allowed=4, in_flight=1, credit=0, held=12,
        timeout_ms=20_000, base_timeout_ms=10_000, health=f"unreachable{text}", calls=40, failed=30,
        endpoints=[EndpointStatus(name=f"10.0.1.1:443{text}", state="probing", for_s=90.0, limit=8)],
    )  # fmt: skip
    endpoints = [
        EndpointStatus(
            name="10.0.0.1:443",
            local=True,
            for_s=3.5,
            in_flight=3,
            limit=50,
            calls=75,
            failed=3,
            latency_ms=4.5,
        ),
        EndpointStatus(
            name=f"10.0.0.2:443{text}",
            state="ejected",
            for_s=7.0,
            why=f"it failed {text}",
            calls=25,
            failed=25,
        ),
    ]
    main = TargetStatus(
        address="billing:443", limit=100, in_flight=3, timeout_ms=10_000, health="serving",
        endpoints=endpoints, more_endpoints=2, answered=100,
    )  # fmt: skip
    head = HeadStatus(
        **at, offset=17, age_s=4.2, tracker_used=0.95, unfinished_share=0.01, why_not=f"no token {text}"
    )
    moved = HeadDecision(
        **at, offset=9, at_ms=now_ms(), rule="age", reason=f"not finished {text}", age_s=300.0
    )
    return {
        "targets": [main, away], "held": 12, "rate_messages": 50.0, "tokens_messages": -4.0,
        "rate_bytes": 1e6, "budget_used": 0.4, "stashed": 2, "heads": [head], "more_heads": 3,
        "decisions": [moved],
    }  # fmt: skip


def incident(message: str = "offsets are gone") -> IncidentRecord:
    """An incident that this worker reports."""
    return IncidentRecord(at_ms=now_ms(), worker=ME, kind="offsets-lost", subject=job(0), message=message)


class FakeControlLog:
    """The control log; an appended event is applied at once."""

    def __init__(self) -> None:
        self.view, self.worker = ControlState(), ME
        self.caught_up = True
        self.recent: deque[dict[str, Any]] = deque()
        self.appended: list[AnyControlEvent] = []
        self.meanwhile: list[AnyControlEvent] = []  # events that another worker appends just before
        self.failure: Exception | None = None
        self.refused_alerts: set[str] = set()

    def counted(self, offset: int) -> bool:
        return bool(self.recent[offset]["counted"])

    async def append(self, *events: AnyControlEvent) -> int:
        if self.failure is not None:
            raise self.failure
        events, self.meanwhile = (*self.meanwhile, *events), []
        for event in events:
            counted = self.view.apply(event)
            self.appended.append(event)
            self.recent.append({"counted": counted, **msgspec.to_builtins(event)})
        return len(self.appended) - 1


class FakeClusters:
    """Clusters that are known and cannot be reached."""

    def __init__(self) -> None:
        self.specs = {"east": None, "west": None}
        self.budget = SimpleNamespace(used_bytes=4096, capacity_bytes=1 << 20)

    def started(self) -> list[Any]:
        return []

    def throttles(self, *_: tuple[str, str]) -> list[BrokerThrottle]:
        return []

    async def get(self, name: str) -> Any:
        raise ConnectionError(f"{name} does not answer")


class EmptyTopic:
    """A client of the control cluster, whose topics are empty; `sent` keeps the events."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    async def send(self, event: Any, *, is_clients: bool = False) -> asyncio.Future[None]:
        self.sent.append(event)
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    async def end_offsets(self, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(wanted, 0)


class FakePump:
    """The fields of a pump that the tracker's handler reads."""

    def __init__(self, tracker: Tracker, calls: dict[int, None], epoch: int = 1) -> None:
        self.tracker = tracker
        self.calls = calls
        self.epoch = epoch
        self.high_watermark = tracker.end
        self.troubles = Troubles()

    def status(self) -> JobStatus:
        return flowing(job(0), self.epoch)


def a_pump() -> FakePump:
    """[100, 120) fetched, [100, 105) and [110, 112) acknowledged, 105 in flight."""
    tracker = Tracker(100, 50)
    tracker.fetched(100, 120)
    tracker.ack_range(100, 105)
    tracker.ack_range(110, 112)
    return FakePump(tracker, {105: None})


class FakeRuntime:
    """The fake runtime of a worker."""

    def __init__(self) -> None:
        self.worker = ME
        self.url = ""
        self.env: dict[str, str] = {}
        self.control = FakeControlLog()
        self.schemas = SchemaLoader(Path("/"))
        self.receiver_rules = ReceiverRules(
            {"billing": ()}, {"billing": ("billing",)}, deny=("x-internal-*",)
        )
        tokens = Tokens({"billing": TokenFile("/missing/token", ("billing",))})
        self.credentials = Credentials({"billing": PemFiles("/missing/ca.pem")}, tokens=tokens)
        self.credentials.load()
        self.clusters = FakeClusters()
        nothing: Any = None
        control: Any = self.control
        definitions = ReadableDefinitions(control, lambda *_: None, LAYOUT)
        self.catalog = Catalog(control, cast("Any", self.clusters), lambda *_: None, definitions, Alone())
        self.members = Members(dead_after_s=3600.0)  # a test sends each heartbeat once
        self.incidents = SimpleNamespace(known=IncidentLog())
        self.lease = Lease(3600.0)
        self.lease.renewed(time.monotonic())
        self.writes = WriteHealth()
        self.open_files = OpenFilesWatch(lambda *_: None)
        self.disk = DiskWatch(Path("/"), list, "w", lambda *_: None)
        self.disk.see(1 << 40, ())
        self.container = ContainerWatch(ContainerSample(1.0))
        self.heartbeats = SimpleNamespace(host_clock=HostClock(clock, lambda *_: None))
        self.save_watch = SaveWatch("trackers", self.writes, lambda: True, *[cast("Any", None)] * 3)
        self.loop_watch = LoopWatch("w", lambda *_: None)
        self.draining = False
        self.should_stop = False
        self.leader: Any = SimpleNamespace(leads=True)
        self.beat: Heartbeat | None = None
        self.regions: Any = None
        self.region = "east"
        self.failover = FailoverParticipant(
            control,
            nothing,
            {},
            LAYOUT,
            self.catalog.workloads.workload,
            FailoverPorts(leads=lambda: True, on_news=lambda: None, report_incident=lambda *_: None),
            presence=Presence(ME, time.monotonic),
        )
        empty: Any = EmptyTopic()
        self.audit_sender = empty
        self.audit_books = AuditBooks(
            "", empty, nothing, nothing, PlannedCounts(self.catalog.audits.bounds_of), lambda *_: None
        )
        auditor = RegionQuery(
            ME, self.audit_books, cast("Any", self.catalog.audits),
            lambda: self.members.live(time.monotonic()),
        )  # fmt: skip
        self.alerts = AlertMonitor(
            control, auditor,
            lambda: self.leader.leads, lambda *_: None, "east", self.env,
        )  # fmt: skip
        restarts: Any = SimpleNamespace(reconcile_soon=lambda: None)
        ports = JobPorts(
            ME, control, cast("Any", self.clusters), self.lease, lambda *_: None, self.schemas, JobFailures()
        )
        self.kinds = make_job_kinds(ports, restarts, self.catalog, JobServices())
        self.kinds.dispatch.workload_statuses = self._workload_statuses  # type: ignore[method-assign]
        pumps: dict[str, Any] = self.kinds.dispatch.pumps  # type: ignore[assignment]
        replicas: dict[str, Any] = self.kinds.replicate.pumps  # type: ignore[assignment]
        self.jobs = SimpleNamespace(
            pumps=pumps, flowing=ChainMap(pumps, replicas), kinds=self.kinds,
            statuses=lambda: self.beat.jobs if self.beat else [],
        )  # fmt: skip

    def _workload_statuses(self, _: float) -> list[WorkloadStatus]:
        return self.beat.workloads if self.beat else []

    def observe(self, heartbeat: Heartbeat) -> None:
        """Takes a heartbeat of this or another worker."""
        self.members.observe(heartbeat, time.monotonic())
        if heartbeat.worker == self.worker:
            self.beat = heartbeat

    def apply(self, *events: AnyControlEvent) -> None:
        """Applies events to the state."""
        for event in events:
            assert self.control.view.apply(event)


@contextmanager
def serving(fed: FakeRuntime | None, host: str = "127.0.0.1", **settings: Any) -> Iterator[str]:
    """Serves the console in a thread with an event loop of its own; gives its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def runtime() -> Runtime | None:
        return cast("Runtime | None", fed)

    async def start() -> tuple[web.AppRunner, int]:
        application = web.Application(**server.options(Web(host=host, **settings), runtime))
        server.install(application, runtime, "east")
        runner = web.AppRunner(application, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return runner, runner.addresses[0][1]

    runner, port = asyncio.run_coroutine_threadsafe(start(), loop).result(ENOUGH_S)
    try:
        url = f"http://127.0.0.1:{port}"
        if fed is not None:
            fed.url = url
        yield url
    finally:
        if fed is not None:
            fed.should_stop = True
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(ENOUGH_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(ENOUGH_S)
        loop.close()
