"""The compose files as a user starts them, with one region and with two; every message is counted."""

from __future__ import annotations

import asyncio
import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import psutil
import pytest

from app.dev.demo.report import count
from app.dev.demo.stage import free_port, wait_until
from app.dev.demo.traffic import create_topic, messages, produce, read_all
from tests.docker.engine import INSTALL, ROOT, run, succeeds

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]
ONE, TWO = ("compose.yaml",), ("compose.yaml", "compose.two-regions.yaml")
MEMORY_GB = {ONE: 2.5, TWO: 5.0}  # they use half of it
GROUP, TOPIC, PARTITIONS, MESSAGES = "billing", "orders", 8, 1_000
READY_S = 120.0
WORKLOADS, SHARED = "/etc/switchyard/workloads", "/etc/switchyard/two-regions"
DEPLOY_WEST = (
    f"sed s/east-aggregate/west-aggregate/ {WORKLOADS}/orders.yaml >/tmp/west.yaml && "
    "switchyard config deploy -f /tmp/west.yaml --execute --yes"
)


class Compose:
    """A compose project with a name and ports of its own."""

    def __init__(self, files: tuple[str, ...], worker_image: str, kafka_image: str) -> None:
        standalone = shutil.which("docker-compose") is not None
        if not standalone and not succeeds("docker", "compose", "version"):
            pytest.skip(f"neither docker-compose nor docker compose is there; {INSTALL}")
        self._command = ["docker-compose"] if standalone else ["docker", "compose"]
        self._project = f"switchyard-{uuid.uuid4().hex[:8]}"
        self._command += ["-p", self._project]
        self._command += [part for file in files for part in ("-f", str(ROOT / "docker" / file))]
        clusters = [f"{region}-{tier}" for region in ("east", "west") for tier in ("regional", "aggregate")]
        self._ports = {cluster: free_port() for cluster in clusters}
        self._env = {
            "SWITCHYARD_WORKER_IMAGE": worker_image,
            "SWITCHYARD_KAFKA_IMAGE": kafka_image,
            **{f"{name.upper().replace('-', '_')}_PORT": str(port) for name, port in self._ports.items()},
        }

    def __call__(self, *arguments: str) -> str:
        """Runs compose; its output. A failure fails the test."""
        return run(*self._command, *arguments, timeout_s=300.0, env=self._env)

    def bootstrap(self, cluster: str) -> str:
        return f"127.0.0.1:{self._ports[cluster]}"

    def containers(self, service: str | None = None) -> list[dict[str, Any]]:
        """The project's containers as Docker reports them, with the stopped ones."""
        labels = {"project": self._project, **({"service": service} if service else {})}
        filters = [f"--filter=label=com.docker.compose.{name}={value}" for name, value in labels.items()]
        ids = run("docker", "ps", "--all", "--quiet", *filters).split()
        found: list[dict[str, Any]] = json.loads(run("docker", "inspect", *ids)) if ids else []
        return found

    def health(self) -> dict[str, str]:
        """Container -> status of its health check."""
        return {c["Name"]: c["State"].get("Health", {}).get("Status", "none") for c in self.containers()}

    def journal(self, prefix: str) -> list[dict[str, Any]]:
        """The receiver's journal entries of messages whose id begins with `prefix`."""
        (receiver,) = self.containers("receiver")
        lines = run("docker", "exec", receiver["Id"], "cat", "journal.jsonl").splitlines()
        return [d for d in map(orjson.loads, lines) if d["id"].startswith(prefix)]


@contextmanager
def up(files: tuple[str, ...], worker_image: str, kafka_image: str) -> Iterator[Compose]:
    """Starts the project and waits until it is healthy; removes it at the end."""
    available_gb = psutil.virtual_memory().available / 1e9
    if available_gb < MEMORY_GB[files]:
        pytest.skip(f"{available_gb:.1f} GB of memory are free; {MEMORY_GB[files]} are needed")
    compose = Compose(files, worker_image, kafka_image)
    try:
        compose("up", "-d", "--no-build")
        wait_until(
            lambda: set(compose.health().values()) == {"healthy"}, READY_S,
            lambda: f"{compose.health()}\n{compose('logs', '--tail', '12')}", 0.5,
        )  # fmt: skip
        yield compose
    finally:
        compose("down", "--volumes", "--timeout", "5")


def deliver(compose: Compose, cluster: str) -> None:
    """Produces to a cluster's topic and checks that every message is delivered or dead-lettered."""
    bootstrap = compose.bootstrap(cluster)
    sent = list(messages(MESSAGES, prefix=cluster))
    asyncio.run(produce(bootstrap, TOPIC, sent))
    wanted = {message.id for message in sent}

    def settled() -> bool:
        return wanted <= {d["id"] for d in compose.journal(cluster) if d["outcome"] in {"ok", "poison"}}

    wait_until(settled, READY_S, lambda: compose("logs", "--tail", "12"), 0.5)
    poison = sum(message.behaviour == "poison" for message in sent)
    dead: list[str] = []

    def copied() -> bool:
        dead[:] = [
            orjson.loads(record.value)["id"]
            for record in asyncio.run(read_all(bootstrap, f"{TOPIC}__{GROUP}__dlq"))
        ]
        return len(dead) >= poison

    wait_until(copied, READY_S, lambda: f"{len(dead)} of {poison} are in the DLQ", 0.5)
    report = count(sent, compose.journal(cluster), dead)
    assert report.sound, report
    assert (report.delivered, report.dead_lettered, report.duplicates) == (MESSAGES - poison, poison, 0)


def test_one_region_starts_confined_takes_a_deployment_and_delivers_every_message(
    worker_image: str, kafka_image: str
) -> None:
    with up(ONE, worker_image, kafka_image) as compose:
        for container in compose.containers():
            host = container["HostConfig"]
            assert container["Config"]["User"].split(":")[0] not in {"", "0", "root"}
            assert host["ReadonlyRootfs"]
            assert host["CapDrop"] == ["ALL"]
            published = [bind["HostIp"] for binds in (host["PortBindings"] or {}).values() for bind in binds]
            assert set(published) <= {"127.0.0.1"}, container["Name"]
        asyncio.run(create_topic(compose.bootstrap("east-aggregate"), TOPIC, PARTITIONS))
        compose(
            "exec", "-T", "worker", "switchyard", "config", "deploy", "-f", WORKLOADS, "--execute", "--yes"
        )
        deliver(compose, "east-aggregate")
        compose("stop", "worker")
        ended = [worker["State"] for worker in compose.containers("worker")]
        assert [(state["Running"], state["ExitCode"]) for state in ended] == [(False, 0)] * 2


@pytest.mark.deep(minutes=3.0)
def test_two_regions_start_and_each_delivers_its_own_messages(worker_image: str, kafka_image: str) -> None:
    with up(TWO, worker_image, kafka_image) as compose:
        for cluster in ("east-aggregate", "west-aggregate"):
            asyncio.run(create_topic(compose.bootstrap(cluster), TOPIC, PARTITIONS))
        compose(
            "exec", "-T", "worker", "switchyard", "config", "deploy", "-f", WORKLOADS, "--execute", "--yes"
        )
        compose("exec", "-T", "worker-west", "sh", "-c", DEPLOY_WEST)
        for cluster in ("east-aggregate", "west-aggregate"):
            deliver(compose, cluster)
        for service in ("worker", "worker-west"):
            (one,) = json.loads(
                compose("exec", "-T", service, "switchyard", "workload", "list", "-o", "json")
            )  # each region knows its own workload only
            assert one["key"] == f"{GROUP}/{TOPIC}"

        # The README's other setup: both regions have one definition, and one region delivers all records.
        for cluster in ("east-regional", "west-regional"):
            asyncio.run(create_topic(compose.bootstrap(cluster), TOPIC, PARTITIONS))
        for service in ("worker", "worker-west"):
            compose(
                "exec", "-T", service, "switchyard", "config", "deploy", "-f", SHARED, "--execute", "--yes"
            )

        def role(service: str) -> str:
            output = compose("exec", "-T", service, "switchyard", "failover", "status", "-o", "json")
            (one,) = json.loads(output)["roles"]
            return str(one["region"])

        wait_until(
            lambda: role("worker") == role("worker-west") == "east", READY_S,
            lambda: compose("logs", "--tail", "12"), 1.0,
        )  # fmt: skip
        sent = list(messages(100, prefix="shared"))
        asyncio.run(produce(compose.bootstrap("west-regional"), TOPIC, sent))
        wait_until(
            lambda: {message.id for message in sent} == {d["id"] for d in compose.journal("shared")},
            READY_S, lambda: compose("logs", "--tail", "12"), 0.5,
        )  # fmt: skip
        assert {(d["region"], d["primary"]) for d in compose.journal("shared")} == {("east", True)}
