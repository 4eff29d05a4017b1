"""One worker as an operator sees it: configuration errors, the API, stops and restarts."""

from __future__ import annotations

import asyncio
import http.client
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import orjson
import pytest

from app.dev.demo.stage import DemoStage, Process, wait_until, workload
from app.dev.demo.stage import http as http_request
from app.dev.demo.traffic import create_topic, messages, produce
from app.dev.yard import Yard
from app.main import AGENTS, TABLES
from tests.system.conftest import make_stage
from tests.system.fleet import committed

pytestmark = pytest.mark.system
ROOT = Path(__file__).resolve().parents[2]
ENOUGH_S = 150.0


@pytest.fixture(scope="module")
def shared_stage(_shared_yard: Yard) -> Iterator[DemoStage]:
    """A stage for tests that start nothing of their own and leave nothing in its region."""
    with make_stage(_shared_yard) as new_stage:
        yield new_stage


@pytest.fixture(scope="module")
def worker(shared_stage: DemoStage) -> Process:
    """Its worker."""
    return shared_stage.worker()


def run_faust(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs `faust -A app ...` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "faust", "-A", "app", *arguments],
        env={**os.environ, **env}, cwd=ROOT, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip


def test_an_invalid_configuration_ends_the_worker_with_3_and_lists_all_errors(tmp_path: Path) -> None:
    file = tmp_path / "switchyard.yaml"
    file.write_text(
        "region: east\nclusters:\n  - {name: a, region: west, tier: regionl, bootstrap: nowhere}\nwbe: {}\n"
    )
    ended = run_faust("worker", SWITCHYARD_CONFIG=str(file))
    assert ended.returncode == 3, ended.stderr
    for part in (f"{file}:3", "did you mean regional?", "host:port", f"{file}:4", "did you mean web?"):
        assert part in ended.stderr


def test_the_sizing_section_of_an_earlier_version_is_ignored_with_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "switchyard.yaml"
    file.write_text(
        "region: east\nclusters:\n  - {name: a, region: east, tier: regional, bootstrap: 'localhost:1'}\n"
        f"data_dir: {tmp_path}\nsizing: {{forecasts: false}}\n"
    )
    ended = run_faust("agents", SWITCHYARD_CONFIG=str(file))
    assert ended.returncode == 0, ended.stderr
    assert "switchyard.yaml has sizing, which is ignored" in ended.stdout + ended.stderr


def test_the_application_has_exactly_its_agents_and_tables(shared_stage: DemoStage) -> None:
    script = (
        "from app import app; app.discover(); "
        "print(sorted(n.rsplit('.', 1)[-1] for n in app.agents), sorted(app.tables))"
    )
    env = {**os.environ, "SWITCHYARD_CONFIG": str(shared_stage.config())}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == f"{sorted(AGENTS)} {sorted(TABLES)}"


def test_switchyard_commands_run_under_faust_with_their_exit_codes(
    shared_stage: DemoStage, worker: Process
) -> None:
    env = {"SWITCHYARD_CONFIG": str(shared_stage.config()), "SWITCHYARD_URL": worker.url}
    ended = run_faust("workload", "list", "-o", "json", **env)
    assert ended.returncode == 0, ended.stderr
    assert orjson.loads(ended.stdout) == []
    assert run_faust("workload", "describe", "no/such", **env).returncode == 4
    assert run_faust("tracker", "show", "nonsense", "0", **env).returncode == 2


def test_the_server_refuses_foreign_hosts_and_origins_and_listens_on_no_public_address(
    worker: Process,
) -> None:
    for path in ("/router/", "/table/", "/stats/", "/graph"):
        assert http_request("GET", worker.url + path)[0] == 404, path

    def raw(method: str, path: str, **headers: str) -> tuple[int, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", worker.port, timeout=60)
        connection.request(
            method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
        )
        answer = connection.getresponse()
        answer.read()
        return answer.status, dict(answer.getheaders())

    assert raw("GET", "/api/v1/overview", Host="evil.example")[0] == 421
    origin = "http://evil.example"
    assert raw("DELETE", "/api/v1/workloads/a/b", Origin=origin)[0] == 403
    status, headers = raw("GET", "/")
    assert status == 200
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    listening = subprocess.run(["ss", "-ltnH"], capture_output=True, text=True, check=False).stdout
    if listening:
        assert f"0.0.0.0:{worker.port}" not in listening


def test_wrong_definitions_change_nothing_and_name_the_fields(worker: Process) -> None:
    url = f"{worker.url}/api/v1/workloads/g/t"
    good = workload("g", "t", "east-aggregate", "127.0.0.1:1")
    wrong = workload("g", "t", "east-agregate", "127.0.0.1:1", orderin="key")
    status, body = http_request("PUT", url, wrong)
    assert status == 422
    assert {p["field"] for p in body["errors"]} == {"metadata.cluster", "spec.orderin"}
    assert http_request("GET", url)[0] == 404
    assert http_request("PUT", url, workload("g", "other", "east-aggregate", "127.0.0.1:1"))[0] == 422
    assert http_request("PUT", url, good)[0] == 201
    assert http_request("PUT", url, good)[1]["changed"] is False
    moved = workload("g", "t", "east-regional", "127.0.0.1:1")
    assert http_request("PUT", url, moved)[0] == 409
    activity = http_request("GET", f"{worker.url}/api/v1/activity")[1]["items"]
    assert sum(item["event"] == "workload-put" for item in activity) == 1
    assert http_request("DELETE", url)[0] == 200


def delivered(stage: DemoStage, wanted: int) -> bool:
    return len({d["id"] for d in stage.deliveries()}) >= wanted


def all_committed(bootstrap: str, topic: str) -> bool:
    at = [(topic, partition) for partition in range(2)]
    return all(done == end for done, end in committed(bootstrap, "g", at).values())


@pytest.mark.deep(minutes=1.2)
def test_a_worker_restarts_without_redelivery_on_a_wiped_or_foreign_data_directory(
    stage: DemoStage, topic_name: str
) -> None:
    bootstrap = stage.yard.bootstrap("east-aggregate")
    asyncio.run(create_topic(bootstrap, topic_name, 2))
    receiver = stage.receiver("g", topic_name)
    stage.settings["worker"] = {"name": "steady", "grace": "5s"}
    worker = stage.worker()
    stage.deploy(worker, workload("g", topic_name, "east-aggregate", receiver.address))
    data = stage.home / "data" / "workers" / "steady"
    total = 0
    for number, fault in enumerate(("wipe", "foreign", "kill")):
        asyncio.run(produce(bootstrap, topic_name, messages(100, prefix=fault)))
        total += 100
        wait_until(partial(delivered, stage, total), ENOUGH_S, worker.tail)
        wait_until(partial(all_committed, bootstrap, topic_name), ENOUGH_S, worker.tail, 0.5)
        if fault == "kill":
            worker.kill()
        else:
            assert worker.terminate() == 0
        if fault == "wipe":
            shutil.rmtree(data)
        elif fault == "foreign":
            (data / "owner.json").write_text('{"cluster_id": "another", "app_id": "another"}')
        worker = stage.worker(f"again-{number}")
    asyncio.run(produce(bootstrap, topic_name, messages(100, prefix="after")))
    wait_until(partial(delivered, stage, total + 100), ENOUGH_S, worker.tail)
    # Acknowledged messages are not delivered again, whatever the local tables held.
    acknowledged = [d["id"] for d in stage.deliveries() if d["outcome"] == "ok"]
    assert len(acknowledged) == len(set(acknowledged))
