"""A second broker for one cluster of the yard, so that a test can move leaders between two.

    yard's cluster:  node 1, broker and controller   +   node 2, broker only, in a folder of the test's

Where a test wants three, node 3 is like node 2.

Node 2 has the yard's marks, so the yard's end finds it. Before it leaves, its partitions move back to node 1
and it is unregistered, so that the cluster is unchanged afterwards.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import NodeNotReadyError, for_code
from aiokafka.protocol.admin import AlterPartitionReassignmentsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.types import Array, Int16, Int32, Schema, String

from app.dev.yard import Yard
from app.dev.yard.broker import _java_command, _new_id, _server_properties, choose_ports
from app.dev.yard.processes import marks, send, wait_gone
from app.kafka.client.cluster import ClusterClient

FIRST, SECOND, THIRD = 1, 2, 3
OFFSETS = "__consumer_offsets"
ENOUGH_S = 90.0  # ends what would hang
LOOK_S = 0.1
GRACE_S = 2.0  # mostly 0.4 s are enough; now and then Kafka takes ten, with nothing left to do
REQUEST_MS = 10_000
NOT_NEEDED = 84  # ELECTION_NOT_NEEDED: it leads already

Replicas = Mapping[tuple[str, int], Sequence[int]]


class ElectLeadersResponse(Response):
    """ElectLeaders response, version 0."""

    API_KEY = 43
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(("partition", Int32), ("error_code", Int16), ("error_message", String("utf-8"))),
                ),
            ),
        ),
    )


class ElectLeadersRequestV0(RequestStruct):
    """ElectLeaders request, version 0: the preferred replica of each partition."""

    API_KEY = 43
    API_VERSION = 0
    RESPONSE_TYPE = ElectLeadersResponse
    SCHEMA = Schema(
        ("topics", Array(("topic", String("utf-8")), ("partitions", Array(Int32)))),
        ("timeout_ms", Int32),
    )


class ElectLeadersRequest(Request[ElectLeadersRequestV0]):
    """Asks for the preferred leaders of some partitions."""

    API_KEY = 43

    def __init__(self, topics: list[tuple[str, list[int]]]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[ElectLeadersRequestV0]) -> ElectLeadersRequestV0:
        return request_struct_class(self._topics, REQUEST_MS)


class SecondBroker:
    """Node 2 (or `node`) of `cluster`; asks through `client`, which knows the cluster."""

    def __init__(
        self, yard: Yard, cluster: str, folder: Path, client: ClusterClient, node: int = SECOND
    ) -> None:
        self.node = node
        self._yard, self._cluster, self._folder, self._client = yard, cluster, folder, client
        self._process: psutil.Popen | None = None
        self._format()

    def _format(self) -> None:
        first = self._yard._broker(self._cluster)
        (cluster_id,) = re.findall(
            r"^cluster\.id=(.+)$", (first.data_dir / "meta.properties").read_text(), re.M
        )
        ports = first.ports()
        assert ports is not None
        data, own_port = self._folder / "data", choose_ports(1)[0]
        data.mkdir(parents=True)
        (data / "meta.properties").write_text(
            f"version=1\ncluster.id={cluster_id}\nnode.id={self.node}\ndirectory.id={_new_id()}\n"
        )
        text = _server_properties(data, (own_port, ports[1]), first.region)
        for line, other in (
            ("process.roles=broker,controller", "process.roles=broker"),
            (f"node.id={FIRST}\n", f"node.id={self.node}\n"),
            (f",CONTROLLER://127.0.0.1:{ports[1]}", ""),
        ):
            assert text.count(line) == 1
            text = text.replace(line, other)
        (self._folder / "server.properties").write_text(text)

    async def start(self) -> None:
        """Starts it, also after a kill, and waits until the cluster counts it."""
        with (self._folder / "broker.log").open("ab") as log:
            self._process = psutil.Popen(
                [
                    *_java_command(self._yard._prepared(), self._folder),
                    *marks(self._yard.home, f"{self._cluster}-{self.node}"),
                    "kafka.Kafka",
                    str(self._folder / "server.properties"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                start_new_session=True,
            )
        await self._until_counted(True)

    async def kill(self) -> None:
        """kill -9."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """Stops it in order and unregisters it. It must keep nothing that node 1 does not."""
        await self._end(signal.SIGTERM, GRACE_S)
        await self._until_counted(False)
        bootstrap = self._yard.bootstrap(self._cluster)
        command = self._yard.tool(
            "org.apache.kafka.tools.ClusterTool", "unregister", "-b", bootstrap, "--id", str(self.node)
        )
        tool = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        output, _ = await tool.communicate()
        assert "no longer registered" in output.decode(), output

    def freeze(self) -> None:
        """SIGSTOP: its connections stay open and nothing answers."""
        assert self._process is not None
        send(self._process, signal.SIGSTOP)

    def thaw(self) -> None:
        """Sends SIGCONT; for a moment the broker believes that it still leads."""
        assert self._process is not None
        send(self._process, signal.SIGCONT)

    async def _end(self, number: signal.Signals, grace_s: float = ENOUGH_S) -> None:
        process, self._process = self._process, None
        if process is not None:
            send(process, number)
            send(process, signal.SIGCONT)  # a frozen one would never see SIGTERM
            if await asyncio.to_thread(wait_gone, [process], grace_s):
                send(process, signal.SIGKILL)
                assert not await asyncio.to_thread(wait_gone, [process], ENOUGH_S)

    async def _until_counted(self, is_there: bool) -> None:
        async with asyncio.timeout(ENOUGH_S):
            while True:
                found = await self._client.send(FIRST, MetadataRequest([]))
                if (self.node in {broker[0] for broker in found.brokers}) == is_there:
                    return
                await asyncio.sleep(LOOK_S)

    # -- who keeps and who leads what ----------------------------------------------------------------

    async def assign(self, wanted: Replicas) -> None:
        """Gives partitions other replicas, and waits until these, and no others, are in sync."""
        topics: dict[str, list[Any]] = {}
        for (topic, partition), replicas in wanted.items():
            topics.setdefault(topic, []).append((partition, list(replicas), {}))
        request: Any = AlterPartitionReassignmentsRequest(
            REQUEST_MS, [(topic, partitions, {}) for topic, partitions in topics.items()], {}  # type: ignore[misc, arg-type]
        )  # fmt: skip
        response = await self._client.send(FIRST, request)
        if response.error_code:
            raise for_code(response.error_code)(response.error_message)
        await self.until_in_sync(wanted)

    async def until_in_sync(self, wanted: Replicas) -> None:
        """Waits until exactly these replicas, in this order of preference, are in sync and one leads."""
        await self._until(
            wanted,
            lambda at, leader, replicas, in_sync: (
                leader in wanted[at]
                and replicas == list(wanted[at])
                and sorted(in_sync) == sorted(wanted[at])
            ),
        )

    async def elect(self, wanted: Replicas) -> None:
        """Makes the first of its replicas the leader of each partition, and waits until it is."""
        topics: dict[str, list[int]] = {}
        for topic, partition in wanted:
            topics.setdefault(topic, []).append(partition)
        response = await self._client.send(FIRST, ElectLeadersRequest(list(topics.items())))
        codes = {code for _, partitions in response.topics for _, code, _ in partitions}
        assert codes <= {0, NOT_NEEDED}, response
        await self._until(wanted, lambda at, leader, *_: leader == wanted[at][0])

    async def until_led_by(self, node: int, partitions: Sequence[tuple[str, int]]) -> None:
        """Waits until `node` leads all of these."""
        await self._until(dict.fromkeys(partitions, ()), lambda _, leader, *__: leader == node)

    async def _until(self, wanted: Replicas, holds: Any) -> None:
        async with asyncio.timeout(ENOUGH_S):
            while True:
                try:
                    response = await self._client.send(
                        FIRST, MetadataRequest(sorted({topic for topic, _ in wanted}))
                    )
                except NodeNotReadyError:  # it was killed, and the client has not heard that it is back
                    self._client.client.force_metadata_update()
                    await asyncio.sleep(LOOK_S)
                    continue
                found = {
                    (topic, partition): (leader, replicas, in_sync)
                    for _, topic, _, partitions in response.topics
                    for _, partition, leader, replicas, in_sync, *_ in partitions
                }
                if all(at in found and holds(at, *found[at]) for at in wanted):
                    return
                await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def second_broker(
    yard: Yard, cluster: str, folder: Path, client: ClusterClient, node: int = SECOND
) -> AsyncIterator[SecondBroker]:
    """Node 2 (or `node`), running. Afterwards the offsets topic is node 1's alone, and it is forgotten."""
    broker = SecondBroker(yard, cluster, folder, client, node)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.assign({at: [FIRST] for at in await offsets_partitions(client)})
        await broker.stop()


async def offsets_partitions(client: ClusterClient) -> list[tuple[str, int]]:
    """The partitions of the topic that keeps committed offsets; none when nothing has been committed."""
    return [(OFFSETS, partition) for partition in range(await client.partitions(OFFSETS) or 0)]


async def create_on(client: ClusterClient, wanted: Replicas) -> None:
    """Makes the topics with these replicas of their partitions."""
    topics: dict[str, dict[int, list[int]]] = {}
    for (topic, partition), replicas in wanted.items():
        topics.setdefault(topic, {})[partition] = list(replicas)
    admin = AIOKafkaAdminClient(**client.spec.aiokafka_options())
    await admin.start()
    try:
        config = {"min.insync.replicas": "1"}
        made: Any = await admin.create_topics(
            [NewTopic(name, -1, -1, replicas, config) for name, replicas in topics.items()]
        )
    finally:
        await admin.close()
    assert not any(code for _, code, *_ in made.topic_errors), made


async def delete(client: ClusterClient, topic: str) -> None:
    """Deletes the topic and waits until the broker says so."""
    admin = AIOKafkaAdminClient(**client.spec.aiokafka_options())
    await admin.start()
    try:
        await admin.delete_topics([topic])
    finally:
        await admin.close()
    async with asyncio.timeout(ENOUGH_S):
        while await client.partitions(topic) is not None:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.05)
