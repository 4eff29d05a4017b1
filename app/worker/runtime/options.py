"""The options of a worker's runtime. `app.main` makes them from the settings and the process's place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.config.receiver_rules import NO_RULES, ReceiverRules
from app.controllog.topics import ControlTopics
from app.failover.topology import Layout
from app.grpc_client.credentials import PemFiles
from app.grpc_client.tokens import TokenFile
from app.kafka.client.cluster import ClusterSpec
from app.offsets.store.tables import RegionAtlas
from app.payload.interceptors import Interceptor
from app.worker.runtime.disk_watch import UnwrittenRows


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of one worker.

    Attributes:
        name: Names the worker's place, not its process.
        url: Its address for other workers.
        topics: The region's control topics.
        place: The place of its loopback addresses (`app.worker.members.advertised_address`).
        group: Its group, for placement; "": none.
        control_cluster: The name of the cluster that has the control topics.
        clusters: All clusters, by name.
        memory_budget_bytes: For fetched batches.
        grace_s: For messages in flight when the worker stops.
        directory: The worker's own.
        schemas: The folder of Protobuf and Avro schemas.
        interceptors: Names and interceptors, in their order.
        atlas: The regions; None: this worker knows no other region.
        layout: The clusters of each region, for definitions with a mode.
        credentials, tokens: For receivers, by name.
        receiver_rules: What definitions may use of `receivers` in switchyard.yaml.
        refuses_local_alerts: Alerts must not go to addresses of this host.
        unwritten: The rows of tables that the disk did not take.
    """

    name: str
    url: str
    topics: ControlTopics
    control_cluster: str
    clusters: Mapping[str, ClusterSpec]
    memory_budget_bytes: int
    grace_s: float
    directory: Path
    schemas: Path
    place: str = ""
    group: str = ""
    zone: str = ""
    interceptors: Sequence[tuple[str, Interceptor]] = ()
    atlas: RegionAtlas | None = None
    layout: Layout | None = None
    credentials: Mapping[str, PemFiles] = field(default_factory=dict)
    tokens: Mapping[str, TokenFile] = field(default_factory=dict)
    receiver_rules: ReceiverRules = NO_RULES
    refuses_local_alerts: bool = False
    unwritten: Callable[[], Sequence[UnwrittenRows]] = tuple
