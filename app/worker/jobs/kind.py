"""The interface of a kind of job for the worker: `dispatch`, `replicate` and `audit` each implement it.

    app.dispatch.jobs.controller, app.replicate.jobs.controller, app.audit.jobs.controller

`app.worker.runtime.job_kinds` is their registry. The job manager, the progress saver and the meter see only
this interface and `Pump`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from app.config.receiver_rules import NO_RULES, ReceiverRules
from app.controllog.codec import JobStatus
from app.controllog.log import ControlLog
from app.grpc_client.credentials import Credentials
from app.kafka.data_clusters import DataClusters
from app.kafka.fetch.deliveries import FetchItem
from app.kernel.fencing import TakeoverAnswer
from app.kernel.incidents import ReportIncident
from app.kernel.job import JobId
from app.kernel.lease import Lease
from app.kernel.limit_shares import LimitNeed, WorkerShare
from app.payload.schema_loader import SchemaLoader
from app.worker.jobs.failures import JobFailures
from app.worker.jobs.pump import Pump, StartedJob
from app.worker.jobs.start_position import LineageReset


@dataclass(frozen=True, slots=True)
class JobPorts:
    """The parts of a worker that every kind of job needs. `worker`: this process's id; `zone`: where it runs,
    "" if nobody said; `credentials`, `receiver_rules`: what workloads may use to reach receivers."""

    worker: str
    control: ControlLog
    clusters: DataClusters
    lease: Lease
    report_incident: ReportIncident
    schemas: SchemaLoader
    failures: JobFailures
    zone: str = ""
    credentials: Credentials = field(default_factory=Credentials)
    receiver_rules: ReceiverRules = NO_RULES


class JobRestarts(Protocol):
    """The job manager, as a kind of job may use it."""

    def contain_errors(self, item: FetchItem) -> AbstractContextManager[None]:
        """Inside, an error stops the job of this item, and no other job; the job starts again later."""
        ...

    def restart_soon(self, job: str, pump: Pump) -> None:
        """Drains and saves the pump, then starts the job again from its finished offsets."""
        ...

    def restart_after_failure(self, job: str, pump: Pump, at: int, error: Exception) -> None:
        """The same after an error at the batch with base offset `at`, which counts as the job's failure."""
        ...

    def restart_in_new_lineage(self, pump: Pump, reset: LineageReset) -> None:
        """Closes the pump; the job starts again in another lineage (`app.worker.jobs.start_position`)."""
        ...

    def reconcile_soon(self) -> None:
        """Reconciles in the loop's next turn, not only after the next second."""
        ...


class JobKind(Protocol):
    """One kind of job on this worker.

    Attributes:
        pumps: Its jobs that run here, by job.
    """

    @property
    def pumps(self) -> Mapping[str, Pump]: ...

    # -- one job ---------------------------------------------------------------------------------

    async def check(self, job: JobId) -> object:
        """Checks that the job can start here, before its former owner is fenced.

        Raises:
            LookupError: Its definition or a cluster is not known here.
            StartPostponed: It cannot start now, for a reason that ends by itself.
            ClusterUnreachable, KafkaError: A cluster does not answer, or refuses.
        """
        ...

    async def start_pump(
        self,
        job: JobId,
        epoch: int,
        answer: TakeoverAnswer,
        reset: LineageReset | None,
        is_mine: Callable[[], bool],
    ) -> StartedJob | None:
        """The pump of a job that was taken over, already in `pumps`; None: the job is another worker's now.
        Raises as `check`, and UnusableField, DescriptorError: its definition cannot be used here."""
        ...

    def accept(self, item: FetchItem) -> None:
        """Takes a fetched batch, a gap or a fetch incident from the kind's agent. Never raises."""
        ...

    def drop(self, job: str) -> None:
        """Forgets a closed or released pump, and what only this pump needed."""
        ...

    def status(self, job: str) -> JobStatus:
        """The job's status for the heartbeat."""
        ...

    def position_of(self, job: JobId) -> tuple[str, str]:
        """The cluster that the job reads, and the group that has its commits. Raises LookupError: it has no
        definition here, or no position that an operator may move."""
        ...

    # -- all jobs --------------------------------------------------------------------------------

    def reconcile(self) -> None:
        """Brings changed definitions into force, and restarts the jobs that need it."""
        ...

    def share(self, shares: Mapping[str, WorkerShare]) -> None:
        """Sets this worker's shares of limits, by the name of the workload or route."""
        ...

    def needs(self, now_s: float) -> list[LimitNeed]:
        """This worker's needs of limits, which the leader divides."""
        ...
