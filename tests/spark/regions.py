"""Changelogs of a region's tables as lists of records, without Kafka, and builders of their values."""

from __future__ import annotations

from typing import Any

import numpy as np

from app.audit.definition import AuditPlan
from app.audit.folds.tier import Closing, SourceStatus, TierKey, TierRecord
from app.audit.folds.window import WindowKey, WindowRecord
from app.controllog import codec
from app.controllog.events import AnyControlEvent, Assignment, AuditPut, FailoverRun, WorkloadPut
from app.controllog.topics import ControlTopics
from app.kernel.fencing import LogId, TrackerRecord
from app.kernel.load import Load
from app.offsets.model.offset_map import Barrier, OffsetMapLine
from switchyard.audit.model.latencies import Latencies
from switchyard.audit.model.totals import Totals
from tests.spark.conftest import NOON_MS, Row, row

WIDTH_MS = 60_000
CLOSED_MS = NOON_MS + 3_600_000


def latencies(*latencies_ms: int) -> bytes:
    """A serialised histogram of these latencies."""
    histogram = Latencies()
    histogram.add(np.array(latencies_ms, dtype=np.int64))
    return histogram.to_bytes()


def window(
    count: int, *, position: int, closed: bool = True, duplicates: int = 0, measured: bytes = b""
) -> WindowRecord:
    """A window with `count` records of 100 bytes each."""
    totals = Totals(count=count, nbytes=100 * count, duplicates=duplicates, latencies=measured)
    return WindowRecord(totals=totals, closed_ms=CLOSED_MS if closed else -1, position=position)


class Region:
    """The changelogs of one region, one partition each; each call appends a record."""

    def __init__(self, name: str) -> None:
        self.topics = ControlTopics(name)
        self.rows: list[Row] = []
        self._next: dict[str, int] = {}

    def put(self, table: str, key: str, value: Any, at_ms: int = NOON_MS) -> None:
        """Appends a record to the table's changelog. None is a tombstone; bytes are not encoded."""
        data = value if value is None or isinstance(value, bytes) else codec.encode(value)
        self._append(f"{self.topics.app_id}-{table}-changelog", key.encode(), data, at_ms)

    def beat(self, beat: codec.Heartbeat) -> None:
        """Appends a heartbeat."""
        self._append(self.topics.heartbeats.name, beat.worker.encode(), codec.encode(beat), beat.at_ms)

    def incident(self, record: codec.IncidentRecord | bytes) -> None:
        """Appends a record without a key to the incidents topic."""
        data = record if isinstance(record, bytes) else codec.encode(record)
        self._append(self.topics.incidents.name, None, data, NOON_MS)

    def _append(self, topic: str, key: bytes | None, value: bytes | None, at_ms: int) -> None:
        offset = self._next.get(topic, 0)
        self._next[topic] = offset + 1
        self.rows.append(row(offset, b"" if value is None else value, topic=topic, key=key, at_ms=at_ms))

    def window(self, topic: str, tier: str, cluster: str, start_ms: int, record: WindowRecord) -> None:
        """Puts a window of one minute."""
        self.put("audit_windows", str(WindowKey(topic, tier, cluster, WIDTH_MS, start_ms)), record)

    def tier(self, topic: str, tier: str, cluster: str, closed_before_ms: int = CLOSED_MS) -> None:
        """Puts a tier whose reports reach `closed_before_ms`; it has closed all windows that end by then."""
        heard = {"reader": SourceStatus(closed_before_ms, closed_before_ms)}
        record = TierRecord(heard, (Closing(closed_before_ms, 10**6, closed_before_ms),), position=10**6)
        self.put("audit_tiers", str(TierKey(topic, tier, cluster)), record)


def workload(group: str, topic: str, owner: str = "billing-team") -> WorkloadPut:
    """A workload definition as the table stores it."""
    metadata = {"group": group, "topic": topic, "cluster": "east-regional", "owner": owner}
    definition = {"kind": "Workload", "metadata": metadata, "spec": {}}
    return WorkloadPut(at_ms=NOON_MS, key=f"{group}/{topic}", definition=definition, etag="1", actor="ann")


def audit_plan(**spec: Any) -> AuditPut:
    """An audit plan with windows of one minute, as the table stores it."""
    definition = {
        "apiVersion": "switchyard/v1",
        "kind": "AuditPlan",
        "metadata": {"name": "all"},
        "spec": {"topics": ["orders"], "window": "1m", **spec},
    }
    stored = AuditPlan.model_validate(definition).to_wire()
    return AuditPut(at_ms=NOON_MS, key="audit:all", definition=stored, etag="1", actor="ann")


def assignment(job: str, worker: str) -> Assignment:
    """The assignment of a job to a worker."""
    return Assignment(at_ms=NOON_MS, job=job, worker=worker, epoch=1, term=1, reason="test")


def line(at_ms: int, source: str = "a", target: str = "c") -> OffsetMapLine:
    """The offset map of a copied partition between these cluster ids; its newest barrier is of `at_ms`."""
    return OffsetMapLine(
        target_topic="orders",
        target_partition=0,
        epoch=1,
        lineage=0,
        source=LogId(source, "b"),
        target=LogId(target, "d"),
        barriers=[Barrier(0, 0, NOON_MS), Barrier(10, 10, at_ms)],
    )


def beat(worker: str, at_ms: int, *jobs: codec.JobStatus, capacity: Load | None = None) -> codec.Heartbeat:
    """A heartbeat of a worker with these jobs."""
    return codec.Heartbeat(
        worker=worker,
        at_ms=at_ms,
        started_ms=NOON_MS,
        url="http://w",
        state="running",
        term=1,
        jobs=list(jobs),
        capacity=capacity or Load(1.0, 2e9, 1e8),
    )


def status(job: str, cpu: float, *, lag: int = 0, arriving: float = 10.0) -> codec.JobStatus:
    """The status that the owner of a job reports in its heartbeat."""
    load = Load(cpu, 1e6, 1000.0)
    return codec.JobStatus(
        job=job,
        epoch=1,
        state="flowing",
        committed=100,
        high_watermark=100 + lag,
        load=load,
        arriving=arriving,
    )


def act(offset: int, event: AnyControlEvent) -> bytes:
    """An encoded entry of the activity topic."""
    return codec.activity_entry(offset, event)[1]


def run_of(state: Any, at_ms: int, **given: Any) -> FailoverRun:
    """A failover run in this state."""
    fields = {"actor": "ann", "reason": "drill", **given}
    return FailoverRun(at_ms=at_ms, id="f-1", to="west", workloads=[], state=state, **fields)


def incident(at_ms: int, kind: str, message: str = "it is shorter") -> codec.IncidentRecord:
    """An incident that worker w-1 reports."""
    return codec.IncidentRecord(
        at_ms=at_ms, worker="w-1", kind=kind, subject="orders", message=message, remedy="look"
    )


def tracker(at_ms: int, offset: int, cluster_id: str = "a") -> TrackerRecord:
    """A job's positions, written by the event at this offset of the tracker topic."""
    log = {"cluster_id": cluster_id}
    return TrackerRecord(epoch=1, worker="w-1", base=100, at_ms=at_ms, offset=offset, **log)
