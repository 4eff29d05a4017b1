"""Outputs: files, functions, and HTTP to a real server."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise, permutations
from pathlib import Path

import msgspec
import numpy as np
import pytest
from aiohttp import web

from app.audit.folds.collector import Collector
from app.dev.demo.traffic import create_topic
from app.dev.yard import Yard
from switchyard.audit import (
    AuditError,
    CallOutput,
    FileOutput,
    HttpOutput,
    KafkaOutput,
    NotPassed,
    Refused,
    kafka_output,
    outputs,
)
from switchyard.audit.model.client_counter import ClientAudit
from switchyard.audit.model.reports import Report, Scope
from switchyard.audit.model.tally import RecordArrays
from switchyard.audit.outputs import MOST_BATCH_BYTES, batches, encode, json_lines, read_lines

Handler = Callable[[web.Request], Awaitable[web.Response]]
ENOUGH_S = 90.0  # ends a test that would hang
Serve = Callable[[Handler], Awaitable[str]]


def reports(many: int, windows: int = 1) -> list[Report]:
    found: list[Report] = []
    for number in range(many):
        client = ClientAudit(Scope(f"topic-{number}", "consumer", "east", 100), "web@1", 1_000)
        times = np.arange(0, 100 * windows, 100)
        client.add(RecordArrays(times, np.full(windows, 10)), 1_000)
        found += client.reports(1_000)
    return found


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a server; returns the address of its endpoint."""
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/api/v1/audit/reports"

    yield start
    for runner in runners:
        await runner.cleanup()


def test_lines_are_read_back_without_those_that_are_torn() -> None:
    some = reports(3, 2)
    data = json_lines(some)
    assert list(read_lines(data)) == some
    assert list(read_lines(data[:-20] + b"\n" + data)) == [*some[:2], *some]


def test_batches_are_small_and_hold_everything_in_its_order() -> None:
    some = [*reports(100, 10), *reports(1, 2_000), *reports(3)]
    assert len(encode(some[100])) > MOST_BATCH_BYTES
    found = list(batches(some))
    assert [one for batch in found for one in batch] == some
    assert [len(batch) for batch in found if len(json_lines(batch)) > MOST_BATCH_BYTES] == [1]
    assert all(len(json_lines([*one, other[0]])) > MOST_BATCH_BYTES for one, other in pairwise(found))


async def test_a_file_continues_after_a_line_that_a_killed_process_left_unfinished(tmp_path: Path) -> None:
    path, some = tmp_path / "reports", reports(3)
    await FileOutput(path).send(some[:1])
    with path.open("ab") as file:
        file.write(b'{"type":"rep')
    reopened = FileOutput(path)
    await reopened.send(some[1:2])
    await reopened.send(some[2:])
    assert list(read_lines(path.read_bytes())) == some


async def test_a_file_continues_after_a_line_that_a_full_disk_cut(tmp_path: Path) -> None:
    path, some = tmp_path / "reports", reports(3)
    output = FileOutput(path)
    await output.send(some[:1])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            await output.send(some[1:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(path.read_bytes().splitlines()[-1]) == 20
    await output.send(some[1:])
    assert list(read_lines(path.read_bytes())) == some


async def test_functions_are_called_with_and_without_await() -> None:
    batch_sizes: list[int] = []

    async def later(some: object) -> None:
        batch_sizes.append(len(some))  # type: ignore[arg-type]

    await CallOutput(later).send(reports(2))
    await CallOutput(lambda some: batch_sizes.append(len(some))).send(reports(3))
    assert batch_sizes == [2, 3]


def problem(status: int, kind: str = outputs.BAD_REPORT) -> web.Response:
    body = {"type": kind, "title": "Bad report", "status": status, "detail": "no such thing"}
    return web.json_response(body, status=status, content_type="application/problem+json")


async def test_http_posts_json_lines(serve: Serve) -> None:
    requests: list[tuple[str, str, str, bytes]] = []

    async def handler(request: web.Request) -> web.Response:
        headers = request.headers
        requests.append((request.method, request.path_qs, headers["Content-Type"], await request.read()))
        assert headers["Authorization"] == "Bearer x"
        return web.json_response({"taken": 3})

    some = reports(3)
    await HttpOutput(await serve(handler) + "?region=east", {"Authorization": "Bearer x"}).send(some)
    ((method, path, kind, body),) = requests
    assert (method, path, kind) == ("POST", "/api/v1/audit/reports?region=east", outputs.NDJSON)
    assert list(read_lines(body)) == some


@pytest.mark.parametrize("status", [301, 302, 307, 401, 404, 429, 500, 502, 503])
async def test_an_answer_that_may_change_is_no_refusal(serve: Serve, status: int) -> None:
    async def handler(request: web.Request) -> web.Response:
        if request.path == "/elsewhere":
            return web.Response(status=200)  # a redirect that was followed would be taken for success
        return web.Response(status=status, text="not now", headers={"Location": "/elsewhere"})

    with pytest.raises(OSError, match=f"{status} .*: not now"):
        await HttpOutput(await serve(handler)).send(reports(1))


@pytest.mark.parametrize(
    "body", ["", "ok", "<html>Log in</html>", '{"taken": 2}', "[1]", '{"taken": "1"}', "[" * 5_000]
)
@pytest.mark.parametrize("status", [200, 202])
async def test_only_switchyards_own_answer_is_success(serve: Serve, status: int, body: str) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body, content_type="text/html")

    with pytest.raises(OSError, match="not Switchyard's answer"):
        await HttpOutput(await serve(handler)).send(reports(1))


@pytest.mark.parametrize("status", [400, 413, 415, 422])
@pytest.mark.parametrize("kind", ["", "about:blank", "https://proxy.example/problem"])
async def test_a_proxys_refusal_is_not_the_receivers(serve: Serve, status: int, kind: str) -> None:
    async def handler(_: web.Request) -> web.Response:
        return problem(status, kind) if kind else web.Response(status=status, text="<html>no such thing")

    with pytest.raises(NotPassed, match=f"{status} .*no such thing"):
        await HttpOutput(await serve(handler)).send(reports(1))


async def test_a_proxys_answer_is_logged_in_one_line_without_terminal_commands(serve: Serve) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=502, text="<html>\r\n \x1b[2Jbad\x00\u202e gateway\n" + "x" * 10_000)

    with pytest.raises(OSError, match=r"^502 Bad Gateway: <html> \[2Jbad gateway x+$") as caught:
        await HttpOutput(await serve(handler)).send(reports(1))
    assert len(str(caught.value)) == outputs.MOST_ANSWER_CHARS


async def test_only_switchyards_problem_is_a_refusal(serve: Serve) -> None:
    async def handler(_: web.Request) -> web.Response:
        return problem(422)

    with pytest.raises(Refused, match=r"422 .*no such thing"):
        await HttpOutput(await serve(handler)).send(reports(1))


def test_halves_of_a_report_count_as_it_does_in_any_order_and_with_it() -> None:
    (whole,) = reports(1, 9)
    whole = msgspec.structs.replace(whole, leaves=True)
    first, second = outputs.halves(whole) or (whole, whole)
    quarters = outputs.halves(second) or ()
    assert (first.watermark_ms, first.leaves, second.watermark_ms) == (-1, False, whole.watermark_ms)
    for order in permutations([first, *quarters, whole]):
        collector = Collector()
        for position, report in enumerate(order):
            collector.apply(report, position)
        assert sum(record.totals.count for record in collector.windows.values()) == 9
    (one,) = reports(1)
    assert outputs.halves(one) is None


async def test_an_unreachable_receiver_is_an_error_to_try_again() -> None:
    with pytest.raises(OSError, match="refused"):
        await HttpOutput("http://127.0.0.1:9/x").send(reports(1))


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "host:80", "http://", "https:///x", "http://host:x/", "http://host:70000/"]
)
def test_an_invalid_address_is_refused_with_a_remedy(url: str) -> None:
    with pytest.raises(AuditError, match="write one such as"):
        HttpOutput(url)


async def test_an_output_whose_broker_hangs_gives_up_and_leaves_nothing_behind(
    killable_yard: Yard, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_output, "SEND_TIMEOUT_S", 2.0)
    region, bootstrap = "east-regional", killable_yard.bootstrap("east-regional")
    await create_topic(bootstrap, topic_name, 1)
    before = asyncio.all_tasks()
    output = KafkaOutput(bootstrap, "east", topic=topic_name)
    await output.send(reports(3))
    await asyncio.to_thread(killable_yard.pause, region)
    with pytest.raises(TimeoutError):
        await output.send(reports(3))
    async with asyncio.timeout(ENOUGH_S):
        while asyncio.all_tasks() != before:  # noqa: ASYNC110 - they end by themselves
            await asyncio.sleep(0.01)
        await asyncio.to_thread(killable_yard.resume, region)
        await output.send(reports(3))
        await output.close()
        while asyncio.all_tasks() != before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
