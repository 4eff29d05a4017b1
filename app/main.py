"""Builds the Faust application from the configuration.

Faust runs the control plane: topology, tables, web server, commands. The data plane (`Runtime`) runs
beside it in the same loop, and stops before it. `faust -A app worker` loads this module through `app.app`.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import threading
import time
from functools import cached_property
from typing import Any, cast

import faust
import structlog
from aiokafka.errors import KafkaError
from faust.cli.base import cli as faust_cli

from app.cli.main import attach
from app.config.problems import InvalidConfiguration
from app.config.settings import Settings, load_settings
from app.controllog.seals import Seals
from app.controllog.topic_times import use_brokers_time, warn_of_settings
from app.controllog.topics import ControlTopic, ControlTopics
from app.dispatch.topics.settings import safe_replication
from app.faust_channels import DataChannel
from app.faust_resilience import PatientApp, PatientTableManager
from app.faust_store import STORE, PatientStore
from app.grpc_client.credentials import PemFiles
from app.grpc_client.tokens import TokenFile
from app.kafka.client import aiokafka_patches
from app.kafka.client.cluster import CLUSTER_RETRY_INTERVAL_S, ClusterClient, ClusterSpec, ClusterUnreachable
from app.kafka.client.startup_retry import heals
from app.kafka.client.topic_tail import bounded
from app.kafka.client.topics import TopicSpec, ensure_topics
from app.kafka.fetch import bounded_consumer
from app.kafka.fetch.deliveries import FetchItem
from app.kernel.job import Kind, kind_of
from app.kernel.json_types import JsonObject
from app.offsets.store.tables import RegionAtlas
from app.payload.interceptor_loader import InterceptorError, load_interceptors
from app.payload.interceptors import Interceptor
from app.web.console import server as console
from app.worker.members.advertised_address import loopback_place, own_url
from app.worker.runtime import freed_memory, open_files
from app.worker.runtime.cgroups import sample_container
from app.worker.runtime.container_watch import ContainerWatch
from app.worker.runtime.data_directory import DataDirUnusable, prepare_datadir, worker_directory
from app.worker.runtime.disk_watch import UnwrittenRows
from app.worker.runtime.log_setup import configure_logging, logging_config
from app.worker.runtime.loop_guard import LoopGuard
from app.worker.runtime.meter import Meter
from app.worker.runtime.options import WorkerOptions
from app.worker.runtime.service import Runtime

log = structlog.get_logger(__name__)

EXIT_INVALID = 3
CHANNEL_EVENTS = 32  # of at most 16 parts of fetch responses each; the budget bounds the bytes
FAUST_STOP_TIMEOUT_S = 15.0
FAUST_RECORDS = 100  # in one turn of the loop: Faust takes at least 0.1 ms for each
AGENTS = {"audit", "audit_reports", "checkpoints", "control", "dispatch", "replicate", "trackers"}
TABLES = {
    "activity", "assignments", "audit_plans", "audit_tiers", "audit_windows", "checkpoints", "routes",
    "trackers", "workloads",
}  # fmt: skip


class SwitchyardApp(PatientApp):
    """The Faust app with Switchyard's runtime.

    Attributes:
        place: The place of its loopback addresses (`app.worker.members.advertised_address`).
        own_url: Its URL for other workers.
    """

    settings: Settings
    topics_declared: ControlTopics
    interceptors: list[tuple[str, Interceptor]]
    runtime: Runtime
    seals: Seals
    place: str
    own_url: str
    _ended_by: BaseException | None = None
    _is_stopping = False
    _guard: LoopGuard | None = None
    _container: ContainerWatch

    def raw_topic(self, declared: ControlTopic) -> Any:
        return self.topic(
            declared.name,
            partitions=declared.partitions,
            internal=True,
            key_type=bytes,
            value_type=bytes,
            key_serializer="raw",
            value_serializer="raw",
        )

    @cached_property
    def fetch_channels(self) -> dict[Kind, DataChannel]:
        """The channels that carry fetched batches to the agent of each kind of job."""
        return {kind: DataChannel(self, maxsize=CHANNEL_EVENTS) for kind in Kind}

    @property
    def dispatch_channel(self) -> DataChannel:
        return self.fetch_channels[Kind.DISPATCH]

    @property
    def replicate_channel(self) -> DataChannel:
        return self.fetch_channels[Kind.REPLICATE]

    @property
    def audit_channel(self) -> DataChannel:
        return self.fetch_channels[Kind.AUDIT]

    async def on_first_start(self) -> None:
        agents = {name.rsplit(".", 1)[-1] for name in self.agents}
        missing = sorted(AGENTS - agents) + sorted(TABLES - set(self.tables))
        if missing:
            # Faust only warns when a module fails to import, but a worker without agents is worse than none.
            log.critical("agents or tables are missing; the log before has the import error", missing=missing)
            raise SystemExit(1)
        settings = self.settings
        addresses = sum(len(cluster.bootstrap) for cluster in settings.clusters)
        if words := open_files.too_few(addresses):
            sys.stderr.write(f"switchyard: {words}\n")
            raise SystemExit(EXIT_INVALID)
        self._container = ContainerWatch(await asyncio.to_thread(sample_container))
        self._guard = LoopGuard(settings.worker.stall_s, self._container.limits.cpu_cores)
        self._guard.start()
        try:
            self.interceptors = await asyncio.to_thread(load_interceptors, settings.interceptors)
        except InterceptorError as error:
            sys.stderr.write("".join(f"{problem}\n" for problem in error.problems))
            raise SystemExit(EXIT_INVALID) from None
        while True:
            try:
                cluster_id, ends = await self._prepare_topics()
                brokers = settings.cluster(settings.control_cluster_name).bootstrap
                self.own_url = await own_url(settings.web, self.conf.web_port, brokers)
                break
            except (ClusterUnreachable, KafkaError, OSError, TimeoutError) as error:
                if isinstance(error, KafkaError) and not heals(error):
                    raise
                # A worker may start before its control cluster, so it waits.
                log.warning("the control cluster does not answer; the start waits for it", why=repr(error))
                await asyncio.sleep(CLUSTER_RETRY_INTERVAL_S)
        directory = worker_directory(settings.data_path, worker_name(settings))
        try:
            await asyncio.to_thread(prepare_datadir, directory, cluster_id, self.topics_declared.app_id, ends)
        except DataDirUnusable as error:
            sys.stderr.write(f"switchyard: {error}\n")
            raise SystemExit(EXIT_INVALID) from None
        # Before the first read: records without a seal must not enter a table.
        bounded_consumer.check_by(self.seals.refuses)
        await self.add_runtime_dependency(self.seals)
        await super().on_first_start()

    async def _prepare_topics(self) -> tuple[str, dict[tuple[str, int], int]]:
        """Creates missing control topics; returns the cluster's id and the changelogs' ends. Raises
        ClusterUnreachable."""
        settings = self.settings
        # Certificates and secrets may be files.
        spec = await asyncio.to_thread(cluster_spec, settings, settings.control_cluster_name)
        client = ClusterClient(spec)
        await client.start_patiently()
        try:
            cluster_id = await client.cluster_id()
            replication, safe = safe_replication(await client.broker_count())
            declared = self.topics_declared.all()
            specs = [TopicSpec(t.name, t.partitions, replication, config=safe | t.config) for t in declared]
            created = await ensure_topics(client, specs)
            if created:
                log.info("created control topics", topics=created)
            await use_brokers_time(client, self.topics_declared)
            await warn_of_settings(client, self.topics_declared)
            self.seals = self.seal = Seals(self.topics_declared, spec.aiokafka_options())
            await self.seals.learn(client)
            changelogs = [topic for topic in declared if topic.name.endswith("-changelog")]
            ends = await client.end_offsets([(t.name, p) for t in changelogs for p in range(t.partitions)])
        finally:
            await client.stop()
        return cluster_id, ends

    async def on_started(self) -> None:
        settings = self.settings
        capacity = settings.worker.capacity
        specs = await asyncio.to_thread(cluster_specs, settings)
        self.runtime = Runtime(
            WorkerOptions(
                name=worker_name(settings),
                url=self.own_url,
                place=self.place,
                topics=self.topics_declared,
                control_cluster=settings.control_cluster_name,
                clusters=specs,
                memory_budget_bytes=settings.worker.memory_budget,
                grace_s=settings.worker.grace_s,
                group=settings.worker.group or "",
                zone=settings.worker.zone or "",
                interceptors=self.interceptors,
                schemas=settings.schemas_path,
                credentials={
                    one.name: PemFiles(one.ca, one.cert, one.key, one.groups)
                    for one in settings.receivers.credentials
                },
                tokens={one.name: TokenFile(one.file, one.groups) for one in settings.receivers.tokens},
                receiver_rules=settings.receiver_rules,
                atlas=atlas(settings),
                layout=settings.layout(),
                refuses_local_alerts=settings.alerts.local == "refuse",
                directory=worker_directory(settings.data_path, worker_name(settings)),
                unwritten=self._unwritten,
            ),
            self._deliver,
            Meter(capacity.cpu, capacity.memory, capacity.network, self._container),
            self.seals,
        )
        await self.add_runtime_dependency(self.runtime)
        await super().on_started()

    def _unwritten(self) -> list[UnwrittenRows]:
        """The rows of tables that the worker's disk did not take."""
        stores = [(name, cast("PatientStore", table.data)) for name, table in self.tables.items()]
        return [UnwrittenRows(name, one.kept_rows, one.refusal) for name, one in stores if one.kept_rows]

    async def started_runtime(self) -> Runtime:
        """The runtime; waits for it, because agents may get events before it is made."""
        while not hasattr(self, "runtime"):  # noqa: ASYNC110 - set once, without an event
            await asyncio.sleep(0.05)
        return self.runtime

    async def _deliver(self, item: FetchItem) -> None:
        await self.fetch_channels[kind_of(item.key.job)].put_item(item)

    def _on_rebalance_when_stopped(self) -> None:
        """Takes no more records, because the agents and tables do not learn the new partitions.

        Faust would close the consumer's connections from this thread, outside their loop. A stop during a
        rebalance then sometimes ended with a segmentation fault in libuv. The consumer's thread closes them.
        """
        self.consumer.stop_flow()

    async def crash(self, reason: BaseException) -> None:
        """A rebalance may call the consumer's thread after its loop has closed; that must not set the exit
        code."""
        if self.should_stop and isinstance(reason, RuntimeError) and "loop is closed" in str(reason):
            log.info("the stop interrupted a rebalance", reason=repr(reason))
            return
        await super().crash(reason)

    async def start(self) -> None:
        try:
            await super().start()
        except Exception as error:
            self._ended_by = error
            raise

    def _crash(self, reason: BaseException) -> None:
        self._ended_by = reason
        super()._crash(reason)

    async def stop(self) -> None:
        """Drains, then stops Faust; a thread ends the process if a step hangs.

        The drain comes before the stop, because Faust ignores rebalances from then on. A worker that drained
        as stopped got records of partitions that its agents did not know, and crashed. A second call returns
        at once, as Faust's does.
        """
        if self._is_stopping:
            return
        self._is_stopping = True
        grace_s = self.settings.worker.grace_s
        if self._guard is not None:
            self._guard.stop()  # the deadline below replaces it
        _end_after(2 * grace_s + FAUST_STOP_TIMEOUT_S + 30.0)
        if hasattr(self, "runtime"):
            await bounded(self.runtime.drain(), 2 * grace_s + 10.0, "drain")
            if not self.runtime.jobs.flowing:
                # aiokafka's group coordinator may lose its cancellation and never close.
                _end_after(2 * FAUST_STOP_TIMEOUT_S, 0)
        await super().stop()

    async def on_stop(self) -> None:
        await bounded(super().on_stop(), FAUST_STOP_TIMEOUT_S, "Faust")
        if self._ended_by is not None:
            # The last line, where people look first.
            log.critical(
                "this worker ends because of an error that waiting does not heal; its jobs move",
                why=repr(self._ended_by),
                remedy="correct the cause, whose traceback is above, and start the worker again",
            )


def _end_after(seconds: float, code: int = 1) -> None:
    """Ends the process after `seconds`; with code 0 if all jobs were handed over."""

    def end() -> None:
        time.sleep(seconds)
        sys.stderr.write(
            f"switchyard: shutdown took more than {seconds:.0f} s; ending the process with {code}. "
            "The log above names the unfinished steps; an unreachable broker may be the cause\n"
        )
        os._exit(code)

    threading.Thread(target=end, daemon=True, name="shutdown-deadline").start()


def worker_name(settings: Settings) -> str:
    """The worker's configured name, else host and web port. It names the place, not the process."""
    return settings.worker.name or f"{os.uname().nodename}-{settings.web.port}"


def cluster_spec(settings: Settings, name: str) -> ClusterSpec:
    """A configured cluster for the Kafka layer. Reads files."""
    cluster = settings.cluster(name)
    options = security_options(cluster)
    return ClusterSpec(name=name, bootstrap=tuple(cluster.bootstrap), archive=cluster.archive, **options)


def cluster_specs(settings: Settings) -> dict[str, ClusterSpec]:
    return {name: cluster_spec(settings, name) for name in settings.cluster_names()}


def atlas(settings: Settings) -> RegionAtlas:
    """The configured regions. Another region's control topics are in its regional cluster."""
    control = {c.region: c.name for c in reversed(settings.clusters) if c.tier == "regional"}
    return RegionAtlas(
        settings.region,
        control | {settings.region: settings.control_cluster_name},
        {cluster.name: cluster.region for cluster in settings.clusters},
    )


def security_options(cluster: Any) -> JsonObject:
    """The security fields of a `ClusterSpec`, with plain secrets."""
    security = getattr(cluster, "security", None)
    if security is None or security.protocol == "plaintext":
        return {}
    options: JsonObject = {"protocol": security.protocol.upper()}
    if security.protocol.endswith("ssl"):
        context = ssl.create_default_context(cafile=security.ca)
        if security.cert:
            context.load_cert_chain(security.cert, security.key)
        options["ssl_context"] = context
    if security.protocol.startswith("sasl"):
        options |= {
            "mechanism": security.mechanism,
            "username": security.username and security.username.reveal(),
            "password": security.password and security.password.reveal(),
        }
    return options


def broker_credentials(spec: ClusterSpec) -> Any:
    if spec.protocol.startswith("SASL"):
        return faust.SASLCredentials(
            username=spec.username,
            password=spec.password,
            mechanism=spec.mechanism,
            ssl_context=spec.ssl_context,
        )
    return faust.SSLCredentials(context=spec.ssl_context) if spec.protocol == "SSL" else None


def build() -> SwitchyardApp:
    """The application for this process's configuration. Raises SystemExit(3): it is invalid, as printed."""
    try:
        settings = load_settings()
    except InvalidConfiguration as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(EXIT_INVALID) from None
    configure_logging(settings.logging)
    if settings.sizing is not None:
        log.warning(
            "switchyard.yaml has sizing, which is ignored: there are no forecasts", remedy="remove it"
        )
    open_files.raise_limit()
    freed_memory.keep()
    aiokafka_patches.install()
    bounded_consumer.install()
    if os.environ.get("SWITCHYARD_LOOP", "uvloop") == "uvloop":
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    topics = ControlTopics(settings.region)
    control = cluster_spec(settings, settings.control_cluster_name)
    app = SwitchyardApp(
        topics.app_id,
        broker=[f"aiokafka://{address}" for address in control.bootstrap],
        store=f"{STORE}://",
        autodiscover=["agents", "tables"],
        datadir=str(worker_directory(settings.data_path, worker_name(settings))),
        web_host=settings.web.host,
        web_bind=settings.web.host,
        web_port=settings.web.port,
        web_application_options=console.options(settings.web, lambda: getattr(app, "runtime", None)),
        web_router_enabled=False,
        web_tables_enabled=False,
        web_stats_enabled=False,
        web_graph_enabled=False,
        web_metrics_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        topic_partitions=1,
        broker_session_timeout=10.0,
        broker_heartbeat_interval=0.5,
        broker_commit_interval=1.0,
        broker_max_poll_interval=300.0,
        broker_max_poll_records=FAUST_RECORDS,
        consumer_auto_offset_reset="earliest",
        stream_wait_empty=False,
        producer_linger=0.005,
        producer_max_request_size=2_000_000,  # the topics' limit: a tier's thousands of clients are one value
        table_standby_replicas=0,
        TableManager=PatientTableManager,
        logging_config=logging_config(settings.logging),
        broker_credentials=broker_credentials(control),
    )
    app.settings = settings
    app.place = loopback_place()  # reads files, and the loop does not run yet
    app.topics_declared = topics
    attach(faust_cli)
    web: Any = app.web
    console.install(web.web_app, lambda: getattr(app, "runtime", None), settings.region)
    return app
