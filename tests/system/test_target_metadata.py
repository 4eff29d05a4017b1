"""Calls carry a definition's metadata, through a real broker. The receiver changes its token and a worker is
killed while messages flow, and every message is counted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from app.dev.demo.stage import DemoStage, http, wait_until, workload
from app.dev.demo.traffic import SentMessage, create_topic, produce
from app.dispatch.push.health import METHOD as HEALTH
from tests.system.fleet import start_workers

pytestmark = pytest.mark.system

CLUSTER, GROUP, PARTITIONS, COUNT, SETTLE_S = "east-aggregate", "billing", 4, 500, 90.0
SERVING = HealthCheckResponse(status=HealthCheckResponse.SERVING).SerializeToString()


class Guarded(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A receiver that takes calls with its token only, and has every tenth message retried once."""

    def __init__(self) -> None:
        self.token = "first"  # noqa: S105 - of this test
        self.refused = 0
        self.taken: dict[str, dict[str, Any]] = {}  # by the message's id, its last metadata
        self.retried: set[str] = set()
        self._lock = threading.Lock()

    def service(self, details: Any) -> Any:
        metadata = dict(details.invocation_metadata)

        def take(body: bytes, context: Any) -> bytes:
            with self._lock:
                if metadata.get("authorization") != f"Bearer {self.token}":
                    self.refused += 1
                    context.abort(grpc.StatusCode.UNAUTHENTICATED, "another token, please")
                if details.method == HEALTH:
                    return SERVING
                name = orjson.loads(body)["id"]
                if int(name) % 10 == 0 and name not in self.retried:
                    self.retried.add(name)
                    context.set_trailing_metadata([("kafka-action", "Retry")])
                    context.abort(grpc.StatusCode.INTERNAL, "later")
                self.taken[name] = metadata
            return b""

        return grpc.unary_unary_rpc_method_handler(take)


@contextlib.contextmanager
def guarded() -> Iterator[tuple[str, Guarded]]:
    receiver = Guarded()
    server = grpc.server(futures.ThreadPoolExecutor(16), handlers=[receiver])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", receiver
    finally:
        server.stop(0).wait()


def test_every_call_has_the_metadata_while_tokens_change_and_a_worker_is_killed(
    stage: DemoStage, topic_name: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    stage.settings["receivers"] = {
        "tokens": [{"name": "billing", "file": str(token), "groups": [GROUP]}],
        "metadata": {"deny": ["x-internal-*"]},
    }
    bootstrap = stage.yard.bootstrap(CLUSTER)
    asyncio.run(create_topic(bootstrap, topic_name, PARTITIONS))
    workers = start_workers(stage, 2)
    with guarded() as (address, receiver):
        metadata = {"authorization": "Bearer secret:billing", "x-source": "header:source", "x-env": "test"}
        deployed = workload(
            GROUP, topic_name, CLUSTER, address, retry=[{"delay": "1s"}],
            target={"compat": "uforwarder", "metadata": {**metadata, "x-internal-a": "1"}},
        )  # fmt: skip
        url = f"{workers[0].url}/api/v1/workloads/{GROUP}/{topic_name}"
        status, problem = http("PUT", url, deployed)
        assert (status, "x-internal-a" in str(problem)) == (422, True), problem
        deployed["spec"]["target"]["metadata"] = metadata
        stage.deploy(workers[0], deployed)

        def send(first: int) -> None:
            some = [SentMessage(str(number), "ok") for number in range(first, first + COUNT)]
            asyncio.run(produce(bootstrap, topic_name, some))

        send(0)
        wait_until(lambda: len(receiver.taken) == COUNT, SETTLE_S, workers[0].tail)
        receiver.token = "second"  # noqa: S105 - of this test
        send(COUNT)
        wait_until(lambda: receiver.refused > 0, SETTLE_S, workers[0].tail)
        workers[1].kill()
        token.write_text("second\n")
        wait_until(lambda: len(receiver.taken) == 2 * COUNT, SETTLE_S, workers[0].tail)

    assert set(receiver.taken) == {str(number) for number in range(2 * COUNT)}
    for name, found in receiver.taken.items():
        assert (found["x-source"], found["x-env"]) == ("demo", "test")
        place = found.get("kafka-tracing-info", "")
        assert place.startswith(f"physical-topic={topic_name}__{GROUP}__retry_1,") == (
            name in receiver.retried
        )
