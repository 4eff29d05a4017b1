"""Workers that push over mutual TLS: certificates are renewed, a worker lacks them, workers are killed, and
every message is counted."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from app.dev.demo.stage import DemoStage, Process, http, wait_until, workload
from app.dev.demo.traffic import SentMessage, create_topic, produce
from tests.grpc_client.peers.certificates import Certificates, make
from tests.system.fleet import incidents, start_workers

pytestmark = pytest.mark.system

CLUSTER, GROUP, PARTITIONS, SETTLE_S = "east-aggregate", "billing", 4, 90.0
COUNT = 500


def send_some(bootstrap: str, topic: str) -> set[str]:
    """Produces messages that a receiver acknowledges; returns their ids."""
    some = [SentMessage(uuid.uuid4().hex, "ok") for _ in range(COUNT)]
    asyncio.run(produce(bootstrap, topic, some))
    return {one.id for one in some}


def delivered(stage: DemoStage) -> set[str]:
    """The ids of all messages that a receiver acknowledged."""
    return {one["id"] for one in stage.deliveries() if one["outcome"] == "ok"}


def is_reported(worker: Process, kind: str) -> bool:
    """Whether an incident says that the credentials are not there."""
    return any("no credentials 'billing'" in one["message"] for one in incidents(worker, kind))


@pytest.mark.parametrize("contract", ["unary", "stream"])
def test_messages_flow_over_mutual_tls_while_certificates_are_renewed_and_a_worker_is_killed(
    contract: str, stage: DemoStage, topic_name: str, tmp_path: Path
) -> None:
    first, second = make(tmp_path / "first"), make(tmp_path / "second")
    ca, cert, key = first.install(tmp_path)
    entry = {"name": "billing", "ca": ca, "cert": cert, "key": key}
    stage.settings["receivers"] = {"credentials": [entry]}
    bootstrap = stage.yard.bootstrap(CLUSTER)
    asyncio.run(create_topic(bootstrap, topic_name, PARTITIONS))

    def receiver(certificates: Certificates, port: int = 0) -> Process:
        return stage.receiver(GROUP, topic_name, port=port, extra=certificates.mutual_options)

    serving = receiver(first)
    port = int(serving.address.rpartition(":")[2])
    workers = start_workers(stage, 2)
    deployed: dict[str, Any] = workload(
        GROUP, topic_name, CLUSTER, f"127.0.0.1:{port}",
        target={"contract": contract, "tls": {"credentials": "biling", "server_name": "localhost"}},
    )  # fmt: skip
    url = f"{workers[0].url}/api/v1/workloads/{GROUP}/{topic_name}"
    status, problem = http("PUT", url, deployed)
    assert (status, "billing" in str(problem)) == (422, True), problem
    deployed["spec"]["target"]["tls"]["credentials"] = "billing"
    stage.deploy(workers[0], deployed)

    sent: set[str] = set()

    def send() -> None:
        sent.update(send_some(bootstrap, topic_name))

    def arrived() -> bool:
        return delivered(stage) >= sent

    send()
    wait_until(arrived, SETTLE_S, workers[0].tail)
    Path(key).write_bytes(b"damaged")
    wait_until(lambda: bool(incidents(workers[0], "receiver-credentials")), SETTLE_S, workers[0].tail)
    assert all(key in one["message"] for one in incidents(workers[0], "receiver-credentials"))
    send()  # over the connections that there are
    workers[1].kill()
    serving.terminate()
    serving = receiver(second, port)  # trusts only certificates of the other authority
    send()
    second.install(tmp_path)
    wait_until(arrived, SETTLE_S, workers[0].tail)
    assert delivered(stage) == sent


def test_a_worker_without_the_credentials_keeps_the_former_definition_and_takes_nothing_over(
    stage: DemoStage, topic_name: str, tmp_path: Path
) -> None:
    certificates = make(tmp_path)
    ca, cert, key = certificates.install(tmp_path)
    bootstrap = stage.yard.bootstrap(CLUSTER)
    asyncio.run(create_topic(bootstrap, topic_name, PARTITIONS))
    plain = stage.receiver(GROUP, topic_name)
    secure = stage.receiver(GROUP, topic_name, extra=certificates.mutual_options)
    without = stage.worker()
    entry = {"name": "billing", "ca": ca, "cert": cert, "key": key}
    stage.settings["receivers"] = {"credentials": [entry]}
    having = stage.worker()
    stage.deploy(having, workload(GROUP, topic_name, CLUSTER, plain.address))
    sent = send_some(bootstrap, topic_name)
    wait_until(lambda: delivered(stage) >= sent, SETTLE_S, having.tail)

    tls = {"credentials": "billing", "server_name": "localhost"}
    stage.deploy(having, workload(GROUP, topic_name, CLUSTER, secure.address, target={"tls": tls}))
    wait_until(lambda: is_reported(without, "definition-not-in-force"), SETTLE_S, without.tail)
    sent |= send_some(bootstrap, topic_name)  # by one worker with TLS, by the other without
    wait_until(lambda: delivered(stage) >= sent, SETTLE_S, without.tail)

    settings = stage.settings.pop("receivers")
    again = stage.worker()
    without.kill()
    having.kill()  # so the one left gets all partitions
    plain.terminate()
    sent |= send_some(bootstrap, topic_name)
    wait_until(lambda: is_reported(again, "job-cannot-start"), SETTLE_S, again.tail)
    again.kill()
    stage.settings["receivers"] = settings
    last = stage.worker()
    wait_until(lambda: delivered(stage) >= sent, SETTLE_S, last.tail)
    assert delivered(stage) == sent
