"""A connection to one Kafka cluster: aiokafka's client with bounded waits and errors for operators.

The fetch service, the committer and the topic tools share one `ClusterClient` per cluster.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from socket import gaierror
from typing import Any

import structlog
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.errors import KafkaError, StaleMetadata, for_code
from aiokafka.protocol.api import Request
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest
from aiokafka.structs import TopicPartition

from app.kafka.client import aiokafka_patches
from app.kafka.client.aiokafka_types import ClientOptions, ResponseFields
from app.kafka.client.permissions import NOT_AUTHORISED, lacks
from app.kafka.client.topic_ids import UNKNOWN_ID, TopicIdsRequest, ids_of, leader_epochs_of
from app.kernel.broker_throttle import ThrottleMeter

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT_S = 30.0
CONNECT_RETRY_INTERVAL_S = 0.3
NEW_LEADER_TRIES, NEW_LEADER_RETRY_S = 20, 0.25  # a new partition has no leader yet
CLUSTER_RETRY_INTERVAL_S, WAITING_LOG_INTERVAL_S = 1.0, 10.0  # while waiting for a cluster
ADDRESS_CHECK_TIMEOUT_S = 2.0
REQUEST_MS = 10_000
METADATA_MAX_AGE_MS = 30_000
METADATA_BROKER_TURN_S = 2.0  # then the client tries another broker, because this one may be frozen
EARLIEST, LATEST = -2, -1
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
UNKNOWN_TOPIC, NO_LEADER = 3, 5
LEADER_ERROR_CODES = {UNKNOWN_TOPIC, NO_LEADER, 6, 9, 56, 74, 75, 100, 103}  # passes with fresh metadata
TOPIC_UNKNOWN = {UNKNOWN_TOPIC, 17}  # UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC


class ClusterUnreachable(RuntimeError):
    """No broker of the cluster answered in time."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """The address of a cluster, with resolved secrets, which are never shown; `archive` is a folder."""

    name: str
    bootstrap: tuple[str, ...]
    client_id: str = "switchyard"
    protocol: str = "PLAINTEXT"
    mechanism: str = "PLAIN"
    username: str | None = None
    password: str | None = None
    ssl_context: ssl.SSLContext | None = None
    archive: str | None = None

    def __repr__(self) -> str:
        return f"ClusterSpec({self.name!r}, {','.join(self.bootstrap)})"

    def aiokafka_options(self) -> ClientOptions:
        options: ClientOptions = {
            "bootstrap_servers": list(self.bootstrap),
            "client_id": self.client_id,
            "security_protocol": self.protocol,
        }
        if self.ssl_context is not None:
            options["ssl_context"] = self.ssl_context
        if self.protocol.startswith("SASL"):
            options |= {
                "sasl_mechanism": self.mechanism,
                "sasl_plain_username": self.username,
                "sasl_plain_password": self.password,
            }
        return options


class _Client(AIOKafkaClient):
    """aiokafka's client, which asks another broker for metadata if one does not answer."""

    async def _metadata_update(self, cluster_metadata: ClusterMetadata, topics: set[str]) -> bool:
        request = MetadataRequest(list(topics or ()) or None, allow_auto_topic_creation=False)
        nodes = [broker.nodeId for broker in self.cluster.brokers()]
        random.shuffle(nodes)
        for node in nodes:
            try:
                async with asyncio.timeout(None if node == nodes[-1] else METADATA_BROKER_TURN_S):
                    found = await self.send(node, request)  # type: ignore[no-untyped-call]
            except Exception:  # noqa: BLE001, S112 - else aiokafka's task ends, and its waiters wait for ever
                continue
            if found.brokers:
                cluster_metadata.update_metadata(found)
                return True
        cluster_metadata.failed_update(None)
        return False


class ClusterClient:
    """The connections to one cluster. Raises RuntimeError: this process did not call
    `aiokafka_patches.install`."""

    def __init__(self, spec: ClusterSpec) -> None:
        if not aiokafka_patches.is_installed():
            raise RuntimeError(
                f"no client of cluster {spec.name} is made, because aiokafka is not patched in this process; "
                "its main function must call app.kafka.client.aiokafka_patches.install()"
            )
        self.spec = spec
        self.name = spec.name
        self._client: AIOKafkaClient | None = None
        self._leader_epochs: dict[tuple[str, int], int] = {}
        self.throttle = ThrottleMeter(spec.name)

    @property
    def client(self) -> AIOKafkaClient:
        """aiokafka's client; the cluster must have been started."""
        assert self._client is not None, f"cluster {self.name} has not been started"
        return self._client

    async def start(self, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
        """Connects; retries until `timeout_s` has passed. Raises ClusterUnreachable: no broker answered."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            client: AIOKafkaClient = _Client(  # type: ignore[no-untyped-call]  # aiokafka has no types
                request_timeout_ms=REQUEST_MS,
                metadata_max_age_ms=METADATA_MAX_AGE_MS,
                **self.spec.aiokafka_options(),
            )
            try:
                await client.bootstrap()
                if client.get_random_node() is None:
                    raise StaleMetadata(
                        "the broker that answered does not know any broker yet, not even itself"
                    )
            except (KafkaError, OSError, TimeoutError) as error:
                await client.close()
                if time.monotonic() > deadline_s:
                    raise ClusterUnreachable(
                        f"cluster {self.name} at {', '.join(self.spec.bootstrap)} does not answer: {error}; "
                        f"{await address_problems(self.spec)}; check that it runs, and check bootstrap and "
                        "security in switchyard.yaml"
                    ) from error
                await asyncio.sleep(CONNECT_RETRY_INTERVAL_S)
                continue
            except BaseException:  # cancelled
                await client.close()
                raise
            self._client = client
            return

    async def start_patiently(self) -> None:
        """Connects, however long it takes; logs at once, and every `WAITING_LOG_INTERVAL_S`, why it waits."""
        began_s, logged_s = time.monotonic(), float("-inf")
        while True:
            try:
                return await self.start(0.0)
            except ClusterUnreachable as error:
                now_s = time.monotonic()
                if now_s - logged_s >= WAITING_LOG_INTERVAL_S:
                    logged_s = now_s
                    log.warning("waiting for a cluster", waited_s=round(now_s - began_s), why=str(error))
            await asyncio.sleep(CLUSTER_RETRY_INTERVAL_S)

    async def stop(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def send(self, node: int, request: Request[Any], group: str | int = 0) -> ResponseFields:
        """Sends a protocol request to a broker; `group` names the connection. Raises KafkaError."""
        answer = await self.client.send(node, request, group=group)
        delay_ms = getattr(answer, "throttle_time_ms", None) or 0
        self.throttle.note(request.API_KEY, delay_ms, time.monotonic())
        return answer

    async def any_node(self) -> int:
        """The id of a live broker. Raises ClusterUnreachable: none is known."""
        node = self.client.get_random_node()
        if node is None:
            await self.client.force_metadata_update()
            node = self.client.get_random_node()
        if node is None:
            raise ClusterUnreachable(f"cluster {self.name} has no live broker")
        return int(node)

    async def metadata(self, topics: list[str] | None) -> ResponseFields:
        """The metadata of topics, from any broker that answers; never creates a topic. Raises
        ClusterUnreachable: no broker answered."""
        return await self._send_to_any(MetadataRequest(topics))

    async def _send_to_any(self, request: Request[Any]) -> ResponseFields:
        error: BaseException | None = None
        for _ in range(3):
            try:
                return await self.send(await self.any_node(), request)
            except (KafkaError, OSError, TimeoutError) as failure:
                error = failure
                await asyncio.sleep(CONNECT_RETRY_INTERVAL_S)
        raise ClusterUnreachable(f"cluster {self.name} does not answer: {error!r}")

    async def topic_ids(self, topics: Iterable[str], node: int | None = None) -> dict[str, str]:
        """The ids of topics, from broker `node` or from any. A recreated topic has another id.

        Topics that do not exist or may not be described are missing. "": the broker is too old (before Kafka
        2.8).

        Raises ClusterUnreachable: no broker answered. Raises KafkaError, OSError, TimeoutError: `node` did
        not answer.
        """
        wanted = sorted(set(topics))
        request = TopicIdsRequest(wanted)
        try:
            response = await (self._send_to_any(request) if node is None else self.send(node, request))
        except NotImplementedError:
            return dict.fromkeys(wanted, UNKNOWN_ID)
        self._leader_epochs |= leader_epochs_of(response)
        return ids_of(response)

    def leader_epoch(self, topic: str, partition: int) -> int:
        """The epoch of a partition's leader at the last `topic_ids`; -1: not known."""
        return self._leader_epochs.get((topic, partition), -1)

    async def cluster_id(self) -> str:
        """The cluster's id; "" if it has none. Raises ClusterUnreachable: no broker answered."""
        return str((await self.metadata([])).cluster_id or "")

    async def broker_count(self) -> int:
        return len((await self.metadata([])).brokers)

    async def topics(self) -> dict[str, int]:
        """All topics with their partition counts."""
        response = await self.metadata(None)
        return {entry[1]: len(entry[3]) for entry in response.topics if not entry[0]}

    async def partitions(self, topic: str) -> int | None:
        """The partition count of `topic`; None if it does not exist. Raises ClusterUnreachable: no broker
        answered. Raises KafkaError: the broker refuses, for example without authorisation."""
        response = await self.metadata([topic])
        entry = response.topics[0]
        if entry[0] in TOPIC_UNKNOWN:
            return None
        if entry[0] == NOT_AUTHORISED:
            raise for_code(entry[0])(lacks(self.spec, "topic", topic, "Describe"))
        if entry[0] and not entry[3]:
            raise for_code(entry[0])(topic)
        return len(entry[3])

    def known_leader(self, topic: str, partition: int) -> int | None:
        """The partition's leader from cached metadata; None starts a metadata request in the background."""
        client = self.client
        node = client.cluster.leader_for_partition(TopicPartition(topic, partition))
        if node is None or node < 0:
            client.add_topic(topic)
            client.force_metadata_update()
            return None
        return int(node)

    def is_led_by_another(self, topic: str, partition: int, node: int | None) -> bool:
        """Whether a broker other than `node` is known to lead the partition."""
        return self.known_leader(topic, partition) not in {None, node}

    def why_no_leader(self, topic: str, partition: int) -> tuple[int, str]:
        """Why no leader of the partition is known: a Kafka error code, and a message."""
        known, where = self.client.cluster, f"topic {topic} in {self.name}"
        partitions = known.partitions_for_topic(topic)
        if topic in known.unauthorized_topics:
            return NOT_AUTHORISED, lacks(self.spec, "topic", topic, "Describe")
        if partitions is None:
            return UNKNOWN_TOPIC, f"topic {topic} is not known in {self.name}"
        if partition not in partitions:
            return UNKNOWN_TOPIC, f"{where} has no partition {partition}"
        return NO_LEADER, f"{topic}-{partition} in {self.name} has no leader"

    async def leader(self, topic: str, partition: int) -> int | None:
        """The partition's leader; None if metadata names none."""
        client, at = self.client, TopicPartition(topic, partition)
        node = client.cluster.leader_for_partition(at)
        if node is None or node < 0:
            await client.add_topic(topic)
            await client.force_metadata_update()
            node = client.cluster.leader_for_partition(at)
        return None if node is None or node < 0 else int(node)

    async def offsets(
        self, wanted: Iterable[tuple[str, int]], timestamp: int, isolation: int = READ_UNCOMMITTED
    ) -> dict[tuple[str, int], int]:
        """The first offsets at or after `timestamp` (ms, or EARLIEST, LATEST), by (topic, partition). -1: the
        partition has no such record. A partition whose leader does not answer is missing."""
        found = await self.offsets_and_times(wanted, timestamp, isolation)
        return {at: offset for at, (offset, _) in found.items()}

    async def offsets_and_times(
        self, wanted: Iterable[tuple[str, int]], timestamp: int, isolation: int = READ_UNCOMMITTED
    ) -> dict[tuple[str, int], tuple[int, int]]:
        """Like `offsets`, with each record's timestamp; -1 if there is none. For times use
        `app.kafka.fetch.offsets_at_time`: a producer may have written wrong offsets."""
        by_node: dict[int, dict[str, list[tuple[int, int]]]] = {}
        for topic, partition in wanted:
            node = await self.leader(topic, partition)
            if node is not None:
                by_node.setdefault(node, {}).setdefault(topic, []).append((partition, timestamp))
        found: dict[tuple[str, int], tuple[int, int]] = {}
        for node, topics in by_node.items():
            try:
                response = await self.send(node, OffsetRequest(-1, isolation, list(topics.items())))
            except (KafkaError, OSError, TimeoutError):
                self.client.force_metadata_update()
                continue
            for topic, partitions in response.topics:
                for partition, code, at_ms, offset in partitions:
                    if code == 0:
                        found[topic, partition] = offset, at_ms
                    else:
                        self.client.force_metadata_update()
        return found

    async def end_offsets(self, wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The log end of each (topic, partition). Retries while leaders are elected. Raises
        ClusterUnreachable: a partition's leader did not answer within ten seconds."""
        missing = set(wanted)
        found: dict[tuple[str, int], int] = {}
        for _ in range(30):
            found |= await self.offsets(missing, LATEST)
            missing -= set(found)
            if not missing:
                return found
            await asyncio.sleep(CONNECT_RETRY_INTERVAL_S)
        raise ClusterUnreachable(f"cluster {self.name}: no leader answers for {sorted(missing)[:3]}")

    async def committed_ends(self, wanted: Collection[tuple[str, int]]) -> dict[tuple[str, int], int]:
        """The end of each (topic, partition) for a reader of committed records, without those whose leader
        does not answer for five seconds. Raises ClusterUnreachable, KafkaError: the cluster refuses."""
        ends: dict[tuple[str, int], int] = {}
        for _ in range(NEW_LEADER_TRIES):
            ends |= await self.offsets([at for at in wanted if at not in ends], LATEST, READ_COMMITTED)
            if len(ends) == len(wanted):
                break
            await asyncio.sleep(NEW_LEADER_RETRY_S)
        return ends


async def address_problems(spec: ClusterSpec) -> str:
    """Each bootstrap address's connection problem, for people, within `ADDRESS_CHECK_TIMEOUT_S`."""
    return "; ".join(await asyncio.gather(*(_address_problem(spec, address) for address in spec.bootstrap)))


async def _address_problem(spec: ClusterSpec, address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(ADDRESS_CHECK_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
    except gaierror as error:
        return f"the name {host} does not resolve ({error.strerror})"
    except ConnectionRefusedError:
        return f"nothing listens at {address}"
    except TimeoutError:
        return f"no connection to {address} within {ADDRESS_CHECK_TIMEOUT_S:.0f} s"
    except (OSError, ValueError) as error:
        return f"no connection to {address}: {error}"
    return f"{address} accepts connections, but does not answer like a Kafka broker over {spec.protocol}"
