"""size recommend asks a worker, size what-if nobody: figures with reasons, and an exit code to act on."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from app.cli.main import switchyard
from app.dispatch.model.throughput_diagnosis import TargetStatus
from app.kernel.clock import now_ms
from app.kernel.load import Load
from app.sizing.forecasts import HOUR_MS, FleetForecastRecord, WorkloadForecastRecord, key
from tests.web.runtime_fake import FakeRuntime, assigned, beat, definition, flowing, job, put, serving


def run(*arguments: str, url: str = "http://127.0.0.1:1") -> Result:
    return CliRunner().invoke(switchyard, arguments, env={"SWITCHYARD_URL": url, "SWITCHYARD_CONFIG": "none"})


def what_if(*arguments: str) -> Any:
    ended = run("size", "what-if", *arguments, "-o", "json")
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


def busy_region(fed: FakeRuntime) -> None:
    fed.apply(put(definition()), assigned(job(0)), assigned(job(1)))
    told: dict[str, Any] = {
        "arriving": 500.0,
        "ceiling": 1000.0,
        "load": Load(0.5, 1 << 20, 1e5),
        "committed": 40,
    }
    target = TargetStatus(address="billing:443", latency_ms=20.0, calls=40)
    heard = beat(flowing(job(0), **told), flowing(job(1), **told), targets=[target])
    fed.observe(msgspec.structs.replace(heard, capacity=Load(1.0, 2 << 30, 125e6)))


def test_what_if_is_computed_without_asking_anybody() -> None:
    made = what_if(
        "--rate", "5000", "--latency", "20ms", "--partitions", "4", "--per-partition", "800", "--cpu", "1.8"
    )
    assert made["in_flight"]["value"] == 130
    assert made["partitions"]["value"] == 9
    assert made["workers"]["value"] == 4
    assert "Little's law" in made["in_flight"]["why"]


def test_what_if_of_a_strict_order_is_bound_by_its_partitions() -> None:
    made = what_if("--rate", "200", "--latency", "50ms", "--partitions", "4", "--ordered")
    assert (made["partitions"]["value"], made["in_flight"]["value"]) == (13, 4)


def test_what_was_not_said_is_unknown_and_the_option_that_says_it_is_named() -> None:
    made = what_if("--rate", "200")
    for what, option in (("partitions", "--per-partition"), ("in_flight", "--latency"), ("workers", "--cpu")):
        assert made[what]["value"] is None
        assert option in made[what]["why"]
    assert "unknown" in run("size", "what-if", "--rate", "200").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--rate", "-1"), "not a number from 0"),
        (("--rate", "nan"), "not a number from 0"),
        (("--rate", "5", "--latency", "3 parsecs"), "not a duration"),
        (("--rate", "5", "--memory", "2 apples"), "not a size"),
        (("--rate", "5", "--headroom", "0"), "must be above 0"),
        (("--latency", "5ms"), "--rate"),
    ],
)
def test_what_cannot_be_is_refused_with_the_option_and_the_value(
    arguments: tuple[str, ...], words: str
) -> None:
    ended = run("size", "what-if", *arguments)
    assert ended.exit_code == 2
    assert words in ended.stderr


def test_recommend_tells_the_fleet_and_every_workload() -> None:
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


def test_recommend_tells_the_forecast_in_lines_of_its_own() -> None:
    fed = FakeRuntime()
    with serving(fed) as url:
        busy_region(fed)
        hour = now_ms() // HOUR_MS
        common: dict[str, Any] = {
            "region": "east", "made_ms": now_ms() - HOUR_MS, "from_hour": hour, "history_hours": 672,
            "error": 0.1, "method": "",
        }  # fmt: skip
        fleet = FleetForecastRecord(**common, group="", workers=(9, 9))
        workload = WorkloadForecastRecord(
            **common, workload="billing/orders", rates=(2000.0, 1.0), margin=1.5, partitions=4,
            partitions_now=2, partitions_why="busier",
        )  # fmt: skip
        for record in (fleet, workload):
            fed.forecasts.accept(key(record), msgspec.json.encode(record), now_ms())
        fed.forecasts.accept(b"x", b"\x1b[31m", now_ms())
        shown = run("size", "recommend", url=url)
        lines = shown.stdout.splitlines()
        assert lines[1].split()[:4] == ["(all)", "workers", "1", "9"]
        assert lines[2].split()[:5] == ["(all)", "workers,", "forecast", "1", "9"]
        assert any(
            line.split()[:6] == ["billing/orders", "in", "flight,", "forecast", "100", "60"] for line in lines
        )
        assert "up to 3,000 messages/s on" in shown.stdout
        assert "1 of the forecast topic's records passed over" in shown.stderr


@contextmanager
def older(url: str) -> Iterator[str]:
    """The address of a worker of the version before forecasts: this one's answers, without what that did not
    say."""

    class Older(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with urllib.request.urlopen(url + self.path) as answer:  # noqa: S310 - our own worker
                told = json.load(answer)
            for one in (told, *told.get("fleets", []), *told.get("items", [])):
                for name in ("forecasts", "forecast"):
                    one.pop(name, None)
            body = json.dumps(told).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing on standard error."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Older) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_worker_that_is_older_than_forecasts_tells_what_it_measures() -> None:
    fed = FakeRuntime()
    with serving(fed) as now, older(now) as url:
        busy_region(fed)
        shown = run("size", "recommend", url=url)
        assert shown.exit_code == 0, shown.output
        assert shown.stdout.splitlines()[1].split()[:4] == ["(all)", "workers", "1", "3"]
        assert "forecast" not in shown.stdout
        assert "older than this command, and knows no forecasts" in shown.stderr
        assert "older" not in run("size", "recommend", url=now).stderr
        assert json.loads(run("size", "recommend", "-o", "json", url=url).stdout)["forecasts"] is None
        assert run("size", "recommend", "billing/orders", url=url).exit_code == 0
        assert run("size", "recommend", "--check", url=url).exit_code == 9


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


def test_a_worker_that_is_away_is_told() -> None:
    assert run("size", "recommend").exit_code == 7
