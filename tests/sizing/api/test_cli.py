"""`size recommend` shows a worker's figures with their reasons, and an exit code for scripts."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from click.testing import CliRunner, Result

from app.cli.main import switchyard
from app.dispatch.model.throughput_diagnosis import TargetStatus
from app.kernel.load import Load
from tests.web.runtime_fake import FakeRuntime, assigned, beat, definition, flowing, job, put, serving


def run(*arguments: str, url: str = "http://127.0.0.1:1") -> Result:
    return CliRunner().invoke(switchyard, arguments, env={"SWITCHYARD_URL": url, "SWITCHYARD_CONFIG": "none"})


def busy_region(fed: FakeRuntime) -> None:
    fed.apply(put(definition()), assigned(job(0)), assigned(job(1)))
    measured: dict[str, Any] = {
        "arriving": 500.0,
        "ceiling": 1000.0,
        "load": Load(0.5, 1 << 20, 1e5),
        "committed": 40,
    }
    target = TargetStatus(address="billing:443", latency_ms=20.0, calls=40)
    heartbeat = beat(flowing(job(0), **measured), flowing(job(1), **measured), targets=[target])
    fed.observe(msgspec.structs.replace(heartbeat, capacity=Load(1.0, 2 << 30, 125e6)))


def test_recommend_shows_the_fleet_and_every_workload() -> None:
    fed = FakeRuntime()
    with serving(fed) as url:
        busy_region(fed)
        shown = run("size", "recommend", url=url)
        assert shown.exit_code == 0, shown.output
        lines = shown.stdout.splitlines()
        assert lines[1].split()[:4] == ["(all)", "workers", "1", "3"]
        assert "its cpu is at 100%" in lines[1]
        assert any(line.split()[:5] == ["billing/orders", "in", "flight", "100", "26"] for line in lines)
        whole = json.loads(run("size", "recommend", "-o", "json", url=url).stdout)
        assert whole["fleets"][0]["workers"]["value"] == 3
        one = json.loads(run("size", "recommend", "billing/orders", "-o", "json", url=url).stdout)
        assert one == whole["items"][0]
        assert run("size", "recommend", "no/such", url=url).exit_code == 4
        assert run("size", "recommend", "nonsense", url=url).exit_code == 2


def test_check_ends_with_nine_while_workers_are_missing() -> None:
    fed = FakeRuntime()
    with serving(fed) as url:
        busy_region(fed)
        short = run("size", "recommend", "--check", url=url)
        assert short.exit_code == 9
        assert "(all): 1 of 3 workers" in short.stderr
        for worker in ("w2", "w3"):
            fed.observe(msgspec.structs.replace(beat(worker=worker), capacity=Load(1.0, 2 << 30, 125e6)))
        assert run("size", "recommend", "--check", url=url).exit_code == 0


def test_an_unreachable_worker_ends_the_command_with_exit_code_7() -> None:
    assert run("size", "recommend").exit_code == 7


def test_the_removed_what_if_command_names_its_replacement() -> None:
    ended = run("size", "what-if", "--rate", "5000", "--latency", "20ms")
    assert ended.exit_code == 2
    assert "size what-if was removed: change a copy of the loads" in ended.stderr
    assert "what-if" not in run("size", "--help").stdout
