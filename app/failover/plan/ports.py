"""The parts of a worker that failover plans and drills read."""

from __future__ import annotations

from typing import Protocol

from app.controllog.log import ControlLog
from app.failover.run.participant import FailoverParticipant
from app.kafka.data_clusters import DataClusters
from app.offsets.sync.regions import Regions
from app.worker.catalog import Catalog
from app.worker.members.membership import Members


class PlanPorts(Protocol):
    """`app.worker.runtime.service.Runtime` has these. `regions` is None without other regions."""

    control: ControlLog
    members: Members
    clusters: DataClusters
    catalog: Catalog
    failover: FailoverParticipant
    regions: Regions | None
