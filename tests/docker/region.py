"""A region of containers on its own network: a broker, workers, and the sample receiver with a journal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import orjson
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from app.dev.demo.report import StoryReport, count
from app.dev.demo.stage import free_port, http, wait_until
from app.dev.demo.traffic import SentMessage, create_topic, produce, read_all
from app.dispatch.definition import Workload
from app.kafka.client.cluster import ClusterClient, ClusterSpec
from app.kafka.client.commits import OffsetCommitter

GROUP, TOPIC, CLUSTER, PARTITIONS = "billing", "orders", "east-regional", 4
JOBS = 2 * PARTITIONS  # the topic's and its retry topic's
MAX_IN_FLIGHT = 100
READY_S, SETTLE_S = 90.0, 90.0
CONFIG = {
    "region": "east",
    "clusters": [{"name": CLUSTER, "region": "east", "tier": "regional", "bootstrap": "kafka:9092"}],
    "web": {"host": "0.0.0.0"},  # noqa: S104 - of the container; published on loopback
    "worker": {"grace": "10s"},
}
WORKLOAD = {
    "apiVersion": "switchyard/v1",
    "kind": "Workload",
    "metadata": {"group": GROUP, "topic": TOPIC, "cluster": CLUSTER, "owner": "tests"},
    "spec": {
        "target": {"address": "receiver:8443"},
        "flow": {"max_inflight": MAX_IN_FLIGHT},
        "retry": [{"delay": "500ms", "attempts": 3}],
    },
}


def state(container: DockerContainer) -> dict[str, Any]:
    """The container's current state as Docker reports it: `Running`, `ExitCode`, `Health`."""
    container.reload()
    found: dict[str, Any] = container.get_wrapped_container().attrs["State"]
    return found


def health(container: DockerContainer) -> str:
    """The status that the image's health check reports."""
    return str(state(container)["Health"]["Status"])


class Worker:
    """A worker in a container; `url` is its API as this machine reaches it."""

    def __init__(self, container: DockerContainer, port: int) -> None:
        self.container = container
        self.url = f"http://127.0.0.1:{port}"

    def stop(self) -> int:
        """Stops the container as `docker stop` does; its exit code."""
        self.container.get_wrapped_container().stop(timeout=60)
        return int(state(self.container)["ExitCode"])

    def switchyard(self, *arguments: str) -> str:
        """Runs the command line in the container; a failure fails the test. Its output."""
        code, output = self.container.exec(["switchyard", *arguments])
        assert code == 0, output.decode()
        return str(output.decode())

    def owners(self) -> Counter[str]:
        """The number of jobs by owner, as this worker reports it."""
        _, body = http("GET", f"{self.url}/api/v1/assignments?limit=1000")
        return Counter(item["worker"] for item in body["items"] if item["worker"])

    def alive(self) -> set[str]:
        """The running workers, as this worker reports them."""
        _, body = http("GET", f"{self.url}/api/v1/workers?limit=1000")
        return {item["worker"] for item in body["items"] if item["state"] == "running"}

    def ready(self) -> bool:
        """Whether its readiness check passes inside the container, which works without the network."""
        code, _ = self.container.exec(["python", "-IS", "/opt/switchyard/ready.py"])
        return bool(code == 0)


class Region:
    """A region; a context manager that removes its containers."""

    def __init__(self, worker_image: str, kafka_image: str, folder: Path) -> None:
        self._worker_image, self._kafka_image = worker_image, kafka_image
        self._stack = ExitStack()
        self._folder = folder
        self.journal = folder / "journal" / "journal.jsonl"
        self.journal.parent.mkdir()
        self.journal.parent.chmod(0o777)  # the container's user writes it
        self.config: dict[str, Any] = dict(CONFIG)
        self.workers: list[Worker] = []
        self.sent: list[SentMessage] = []

    def __enter__(self) -> Self:
        try:
            self.network = self._stack.enter_context(Network())
            self._kafka, self.bootstrap = self.start_broker("kafka")
            receiver = DockerContainer(self._worker_image).with_command(
                ["python", "-m", "app.dev.sample_receiver", "--host", "0.0.0.0", "--port", "8443",  # noqa: S104
                 "--group", GROUP, "--topic", TOPIC, "--journal", "/journal/journal.jsonl"]
            )  # fmt: skip
            receiver.with_volume_mapping(self.journal.parent, "/journal", "rw")
            self._start(receiver, "receiver", 8443, free_port())
            self.wait_healthy(self._kafka)
            asyncio.run(create_topic(self.bootstrap, TOPIC, PARTITIONS))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, container: DockerContainer, name: str, inner: int, port: int) -> DockerContainer:
        ports: dict[str, Any] = container.ports
        ports[f"{inner}/tcp"] = ("127.0.0.1", port)
        container.with_network(self.network).with_network_aliases(name)
        return self._stack.enter_context(container)

    def start_broker(self, name: str) -> tuple[DockerContainer, str]:
        """Starts a broker. Its address for this machine; containers reach it at name:9092."""
        port = free_port()
        kafka = DockerContainer(self._kafka_image).with_envs(
            KAFKA_LISTENERS="BROKER://:9092,HOST://:19092,CONTROLLER://127.0.0.1:9093",
            KAFKA_ADVERTISED_LISTENERS=f"BROKER://{name}:9092,HOST://127.0.0.1:{port}",
        )
        return self._start(kafka, name, 19092, port), f"127.0.0.1:{port}"

    def start_worker(self) -> Worker:
        """Starts a worker; `wait_healthy` waits until it is ready."""
        config = self._folder / "switchyard.yaml"
        config.write_text(json.dumps(self.config))  # JSON is YAML
        container = DockerContainer(self._worker_image)
        container.with_volume_mapping(config, "/etc/switchyard/switchyard.yaml")
        port = free_port()
        worker = Worker(self._start(container, f"worker-{len(self.workers)}", 6066, port), port)
        self.workers.append(worker)
        return worker

    def two_workers(self) -> tuple[Worker, Worker]:
        """Two workers that share the jobs of the workload, deployed with the command line."""
        first, second = self.start_worker(), self.start_worker()
        for worker in (first, second):
            self.wait_healthy(worker.container)
        file = "/tmp/orders.yaml"  # noqa: S108 - in the container
        first.container.copy_into_container(json.dumps(WORKLOAD).encode(), file)
        first.switchyard("config", "deploy", "-f", file, "--execute", "--yes")
        share = [JOBS // 2, JOBS // 2]
        wait_until(lambda: sorted(first.owners().values()) == share, SETTLE_S, lambda: str(first.owners()))
        return first, second

    def wait_healthy(self, container: DockerContainer) -> None:
        """Waits until the image's health check passes."""
        wait_until(lambda: health(container) == "healthy", READY_S, lambda: self._tail(container))

    # -- the network -----------------------------------------------------------------------------

    def cut_off(self, worker: Worker) -> None:
        """Disconnects a worker from the network; it keeps running."""
        self._docker_network().disconnect(worker.container.get_container_id())

    def reconnect(self, worker: Worker) -> None:
        """Connects the worker to the network again."""
        self._docker_network().connect(worker.container.get_container_id())

    def _docker_network(self) -> Any:
        return self._kafka.get_docker_client().client.networks.get(self.network.id)

    # -- messages --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def load(
        self, messages: Iterable[SentMessage], per_second: float, *, to_its_end: bool = True
    ) -> Iterator[None]:
        """Produces at an even rate while the block runs; then the rest, unless `to_its_end` is false."""
        failures: list[BaseException] = []
        ended = threading.Event()

        def recorded() -> Iterator[SentMessage]:
            for message in messages:
                if ended.is_set() and not to_its_end:
                    return
                self.sent.append(message)
                yield message

        def work() -> None:
            try:
                asyncio.run(produce(self.bootstrap, TOPIC, recorded(), per_second=per_second))
            except BaseException as error:  # noqa: BLE001 - raised again by the one who waits
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if failures:
            raise failures[0]

    def deliveries(self) -> list[dict[str, Any]]:
        """Every delivery in the journal, in order."""
        if not self.journal.exists():
            return []
        return [orjson.loads(line) for line in self.journal.read_bytes().split(b"\n")[:-1]]

    def wait_delivered(self, number: int) -> None:
        """Waits until `number` deliveries have been made."""
        wait_until(lambda: len(self.deliveries()) >= number, SETTLE_S, self._so_far)

    def settle(self) -> StoryReport:
        """Waits until each message is delivered or dead-lettered and offsets are committed; the report."""
        wanted = {message.id for message in self.sent}

        def settled() -> bool:
            return wanted <= {d["id"] for d in self.deliveries() if d["outcome"] in {"ok", "poison"}}

        wait_until(settled, SETTLE_S, self._so_far, 0.3)
        wait_until(lambda: not asyncio.run(self._lag()), SETTLE_S, self._so_far, 0.5)
        dead = asyncio.run(read_all(self.bootstrap, f"{TOPIC}__{GROUP}__dlq"))
        return count(self.sent, self.deliveries(), [orjson.loads(record.value)["id"] for record in dead])

    async def _lag(self) -> int:
        """The consumer lag over the topic and its retry topics.

        A retry copy may remain although its message was delivered.
        """
        client = ClusterClient(ClusterSpec("test", (self.bootstrap,)))
        await client.start()
        try:
            topics = (TOPIC, *Workload.model_validate(WORKLOAD).retry_topics())
            at = [(topic, p) for topic in topics for p in range(await client.partitions(topic) or 0)]
            committed = await OffsetCommitter(client).committed(GROUP, at)
            ends = await client.end_offsets(at)
            return sum(ends[key] - (committed[key] or 0) for key in at)
        finally:
            await client.stop()

    def _so_far(self) -> str:
        seen = Counter(d["outcome"] for d in self.deliveries())
        logs = "\n".join(self._tail(worker.container) for worker in self.workers)
        return f"{seen} of {len(self.sent)}\n{logs}"

    @staticmethod
    def _tail(container: DockerContainer) -> str:
        wrapped = container.get_wrapped_container()
        return f"--- {state(container)}\n{wrapped.logs(tail=12).decode('utf-8', 'replace')}"
