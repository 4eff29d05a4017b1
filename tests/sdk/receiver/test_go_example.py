"""The example receiver in Go, built and run: real clients deliver to it, and every message is counted."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

import switchyard.v1
from app.dispatch.push.call_result import CallResult
from app.dispatch.push.health import ReceiverHealth
from app.dispatch.push.metadata import MetadataTemplate, SenderRole
from app.dispatch.push.stream.client import METHOD as DELIVER
from switchyard.v1.receiver_pb2 import DeliverRequest, DeliverResponse, Open
from tests.dispatch.push.grpc_servers import (
    ENOUGH_S,
    METHOD,
    CountingCaller,
    check_health,
    metadata_of,
    unary_target,
)
from tests.dispatch.push.stream_servers import EOF, RecordingSender, StreamRecord
from tests.sdk.receiver.go_example import Example

EXAMPLE = Path(__file__).parents[3] / "docker" / "receiver"
PROTO = Path(switchyard.v1.__file__).parents[2]
BUILD_S = 900.0  # ends a build that would hang; the first one, of gRPC and Go's library, takes minutes
OK, CANCELLED, UNKNOWN, RESOURCE_EXHAUSTED, FAILED_PRECONDITION = 0, 1, 2, 8, 9
UNIMPLEMENTED, UNAVAILABLE = 12, 14
WINDOW = ("-window", "300")  # small, so that credit is reused
ANSWERS = {
    "ok": (OK, None), "slow": (OK, None), "skip": (OK, "Skip"), "retryable": (RESOURCE_EXHAUSTED, "Retry"),
    "poison": (FAILED_PRECONDITION, "Stash"), "crash": (UNKNOWN, None),
}  # fmt: skip
KINDS = list(ANSWERS)
pytestmark = pytest.mark.timeout(BUILD_S + 300)


def go(folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the build; no other version of Go is fetched."""
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False,
        env={**os.environ, "GOTOOLCHAIN": "local", **more},
    )  # fmt: skip


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built example; Go takes compiled packages from its cache the next time."""
    if shutil.which("go") is None:
        pytest.skip("go is not on PATH")
    pytest.importorskip("grpc_tools", reason="grpcio-tools, which has protoc, is not installed")
    folder = tmp_path_factory.mktemp("go") / "receiver"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("bin", "gen"))
    fetched = go(folder, "go", "mod", "download")
    if fetched.returncode:
        pytest.skip(f"Go's modules cannot be had: {fetched.stderr.strip()[-300:]}")
    protoc = f"{sys.executable} -m grpc_tools.protoc"
    built = go(folder, "sh", "build.sh", PROTO=str(PROTO), PROTOC=protoc)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture
async def receiver(example: Path, tmp_path: Path) -> AsyncIterator[Example]:
    made = Example(example / "bin" / "receiver", tmp_path / "journal.jsonl")
    await made.start(*WINDOW)
    yield made
    if made.process.returncode is None:
        await made.stop(signal.SIGKILL)


@pytest.fixture
async def sender(receiver: Example) -> AsyncIterator[RecordingSender]:
    made = RecordingSender(receiver.port)
    yield made
    await made.target.close()


@pytest.fixture
async def call(receiver: Example) -> AsyncIterator[CountingCaller]:
    made = CountingCaller(unary_target(receiver.address, METHOD))
    yield made
    await made.target.close()


def body(name: object, behaviour: str = "ok", ms: int = 1) -> bytes:
    """A message that says how the example handles it."""
    return json.dumps({"id": str(name), "behaviour": behaviour, "ms": ms}).encode()


def equal_records(count: int, behaviour: str = "ok", ms: int = 1, start: int = 0) -> list[StreamRecord]:
    """Records that the example all handles alike."""
    return [StreamRecord(number, body(number, behaviour, ms)) for number in range(start, start + count)]


def mixed_records(
    count: int,
) -> tuple[list[StreamRecord], list[tuple[int, str | None]], Counter[tuple[str, str]]]:
    """Records of all kinds, the answers expected for them, and their lines in the journal."""
    kinds = [KINDS[number % len(KINDS)] for number in range(count)]
    records = [StreamRecord(number, body(number, kind, 7)) for number, kind in enumerate(kinds)]
    journal = Counter((str(n), "ok" if kind == "slow" else kind) for n, kind in enumerate(kinds))
    return records, [ANSWERS[kind] for kind in kinds], journal


def assert_answers(results: Sequence[CallResult], answers: list[tuple[int, str | None]]) -> None:
    """Asserts that the results are the expected answers, with delay and details."""
    assert [(result.code, result.action) for result in results] == answers
    assert {result.retry_after_s for result in results if result.action == "Retry"} == {0.007}
    assert "the handler crashed" in results[KINDS.index("crash")].details


@pytest.mark.deep(minutes=0.3)
def test_the_example_is_formatted_and_vetted_as_go_wants_it(example: Path) -> None:
    done = [go(example, "gofmt", "-l", "."), go(example, "go", "vet", "./...")]

    assert [(each.returncode, each.stdout, each.stderr) for each in done] == [(0, "", "")] * 2


async def test_both_contracts_hand_the_handler_all_that_a_record_has(
    receiver: Example, sender: RecordingSender, call: CountingCaller
) -> None:
    trace = f"00-{7:032x}-{8:016x}-01"
    headers: list[tuple[str, bytes | None]] = [("a", b"\xff\0"), ("traceparent", trace.encode()), ("a", b"")]
    metadata = metadata_of(MetadataTemplate("orders", "billing", 3), 41, b"\0k", headers, 123, 2, 5)
    assert (await call(body("unary"), metadata)).code == OK
    sent = [
        StreamRecord(41, body("stream"), b"\0k", 123, headers),
        StreamRecord(42, None, None, 120),
        StreamRecord(43, b"", b"", 130),
    ]
    sender.send(sent, partition=3, retry_count=2, attempt=5)
    await sender.all_reported()
    for offset, value in ((44, None), (45, b"")):  # neither is JSON
        await call(value, metadata_of(MetadataTemplate("orders", "billing", 3), offset, None, [], 1, 0, 1))

    lines = {(line["id"], line["offset"]): line for line in receiver.lines()}
    assert len(lines) == 6
    for name in ("unary", "stream"):
        line = lines[name, 41]
        of_name = [header["Value"] for header in line["headers"] if header["Name"] == "a"]
        assert of_name == [base64.b64encode(b"\xff\0").decode(), ""]
        assert {key: value for key, value in line.items() if key != "headers"} == {
            "id": name, "outcome": "ok", "topic": "orders", "group": "billing", "partition": 3, "offset": 41,
            "key": base64.b64encode(b"\0k").decode(), "timestamp_ms": 123, "retry_count": 2, "attempt": 5,
            "traceparent": trace, "tombstone": False,
        }  # fmt: skip
    others = [[lines["", n][key] for key in ("key", "timestamp_ms", "tombstone")] for n in range(42, 46)]
    assert others == [[None, 120, True], ["", 130, False], [None, 1, True], [None, 1, False]]


async def test_a_handler_knows_the_sending_regions_role_over_both_contracts(
    receiver: Example, sender: RecordingSender, call: CountingCaller
) -> None:
    roles = [None, SenderRole("east", primary=True, epoch=64), SenderRole("east", primary=False, epoch=2**53)]
    metadata = metadata_of(MetadataTemplate("orders", "billing", 0), 0, None, [], 0, 0, 1)
    for number, role in enumerate([*roles, roles[0]]):
        sender.target.announce_role(role)
        sender.send(equal_records(2, start=number))
        await sender.all_reported()
        await call(body(f"unary-{number}"), (*metadata, *(role.metadata() if role else ())))
    roles_by_id = {
        line["id"]: tuple(line.get(key) for key in SenderRole._fields) for line in receiver.lines()
    }

    wanted = [tuple(role or (None, None, None)) for role in [*roles, roles[0]]]
    assert [roles_by_id[f"unary-{number}"] for number in range(4)] == wanted
    assert [roles_by_id[str(number)] for number in range(4)] == wanted


async def test_every_one_of_two_thousand_calls_is_answered_as_it_asks(
    receiver: Example, call: CountingCaller
) -> None:
    records, answers, journal = mixed_records(2_000)
    template = MetadataTemplate("orders", "billing", 0)
    results = await asyncio.gather(
        *(call(row.value, metadata_of(template, row.offset, None, [], 0, 0, 1)) for row in records)
    )

    assert_answers(results, answers)
    assert call.answers == 2_000
    assert receiver.handled() == journal
    assert (await call(b"\xff no JSON")).action == "Stash"
    stranger = CountingCaller(unary_target(receiver.address, f"{METHOD}-of-others"))
    assert (await stranger()).code == UNIMPLEMENTED
    await stranger.target.close()


async def test_every_one_of_six_thousand_streamed_messages_is_answered_as_it_asks(
    receiver: Example, sender: RecordingSender
) -> None:
    records, answers, journal = mixed_records(6_000)
    for start in range(0, 6_000, 100):  # twenty times the window of 300
        sender.send(records[start : start + 100], partition=start % 7)
    await sender.all_reported()

    assert_answers([sender.results[number // 100, number % 100] for number in range(6_000)], answers)
    assert receiver.handled() == journal
    assert not sender.lost


async def test_canceled_messages_are_stopped_and_their_credit_is_given_back(
    receiver: Example, sender: RecordingSender
) -> None:
    stuck = sender.send(equal_records(300, "slow", 60_000))
    await sender.until(lambda: sender.target.in_flight == 300)
    sender.send(equal_records(900, start=300))
    sender.target.cancel(stuck, 0, 300)
    await sender.all_reported()

    assert sender.codes(0) + sender.codes(1) == [CANCELLED] * 300 + [OK] * 900
    await sender.until(lambda: len(receiver.lines()) == 1_200)
    assert Counter(outcome for _, outcome in receiver.handled()) == {"canceled": 300, "ok": 900}


async def test_draining_gets_the_results_of_all_that_was_sent(
    receiver: Example, sender: RecordingSender
) -> None:
    sender.send(equal_records(500, "slow", 300))
    await sender.until(lambda: sender.target.in_flight == 300)
    async with asyncio.timeout(ENOUGH_S):
        await sender.target.drain()
    await sender.all_reported()

    assert sender.codes() == [OK] * 300 + [CANCELLED] * 200
    assert len(receiver.lines()) == 300


async def test_a_receiver_killed_in_the_middle_of_a_stream_loses_no_message(
    receiver: Example, sender: RecordingSender
) -> None:
    acknowledged: Counter[int] = Counter()
    unacknowledged = equal_records(3_000)
    for row in unacknowledged[::60]:
        row.value = body(row.offset, "slow", 60_000)  # in progress when it is killed
    sender.send(unacknowledged)
    await sender.until(lambda: len(sender.reported) >= 1_000)
    assert await receiver.stop(signal.SIGKILL) == -signal.SIGKILL
    await sender.all_reported()
    assert set(sender.codes()[::60]) == {UNAVAILABLE}
    await receiver.start(*WINDOW)
    while unacknowledged and len(sender.batches) < 50:
        await sender.all_reported()
        codes = sender.codes(len(sender.batches) - 1)
        assert set(codes) <= {OK, UNAVAILABLE}
        acknowledged.update(row.offset for row, code in zip(unacknowledged, codes, strict=True) if code == OK)
        unacknowledged = [
            StreamRecord(row.offset, body(row.offset))
            for row in unacknowledged
            if row.offset not in acknowledged
        ]
        if unacknowledged:
            sender.send(unacknowledged)

    assert acknowledged == dict.fromkeys(range(3_000), 1)
    assert {line["id"] for line in receiver.lines()} == set(map(str, range(3_000)))


async def test_a_receiver_killed_in_the_middle_of_calls_loses_no_message(
    receiver: Example, call: CountingCaller
) -> None:
    metadata = metadata_of(MetadataTemplate("orders", "billing", 0), 0, None, [], 0, 0, 1)
    open_calls = [asyncio.create_task(call(body(number, "slow", 60_000), metadata)) for number in range(200)]
    assert {(await call(body(number), metadata)).code for number in range(200, 300)} == {OK}
    assert await receiver.stop(signal.SIGKILL) == -signal.SIGKILL
    assert {result.code for result in await asyncio.gather(*open_calls)} == {UNAVAILABLE}

    await receiver.start()
    async with asyncio.timeout(ENOUGH_S):
        while (await call(body("again"), metadata)).code != OK:  # noqa: ASYNC110 - it is asked each time
            await asyncio.sleep(0.05)
    repeated = await asyncio.gather(*(call(body(number), metadata) for number in range(200)))

    assert {result.code for result in repeated} == {OK}
    finished = [name for name, outcome in receiver.handled().elements() if outcome == "ok"]
    assert sorted(finished) == sorted([*map(str, range(300)), "again"])


async def test_sigterm_lets_everything_in_progress_end_over_both_contracts(
    receiver: Example, sender: RecordingSender, call: CountingCaller
) -> None:
    health = [await check_health(receiver.address, service) for service in ("", "switchyard.v1.Receiver")]
    assert health == [ReceiverHealth.SERVING] * 2
    sender.send([*equal_records(299, "slow", 1_000), *equal_records(1, start=299)])
    single = asyncio.create_task(call(body("single", "slow", 1_000)))
    await sender.until(
        lambda: sender.reported
    )  # the last message has its result, so all before it are in progress
    assert (await call(body("last"))).code == OK  # likewise for the call on the same connection
    assert await receiver.stop() == 0

    assert (await single).code == OK
    await sender.all_reported()
    assert sender.codes() == [OK] * 300
    assert [result.details for result in sender.lost] == ["the receiver is shutting down"]
    assert len(receiver.lines()) == 302


async def test_large_messages_are_taken_and_those_beyond_its_limit_harm_no_other(
    sender: RecordingSender, call: CountingCaller
) -> None:
    sizes = {"a": 5 << 20, "b": 17 << 20, "c": 1}
    values = {name: body(name) + b" " * size for name, size in sizes.items()}
    sender.send([StreamRecord(number, value) for number, value in enumerate(values.values())])
    await sender.all_reported()
    key = metadata_of(MetadataTemplate("orders", "billing", 0), 0, b"k" * 1_000_000, [], 0, 0, 1)
    calls = [await call(value, key) for value in values.values()]

    for results in ([sender.results[0, index] for index in range(3)], calls):
        assert [(result.code, result.too_large) for result in results] == [
            (OK, False), (RESOURCE_EXHAUSTED, True), (OK, False),
        ]  # fmt: skip


@pytest.fixture
async def stream(receiver: Example) -> AsyncIterator[Any]:
    """One stream, for a test that writes the requests itself."""
    async with aio.insecure_channel(receiver.address) as channel:
        method: Any = channel.stream_stream(
            DELIVER, DeliverRequest.SerializeToString, DeliverResponse.FromString
        )
        yield method()


async def next_response(stream: Any) -> DeliverResponse | None:
    """The next response; None once the stream has ended, well or not."""
    with contextlib.suppress(aio.AioRpcError):
        response: DeliverResponse = await asyncio.wait_for(stream.read(), ENOUGH_S)
        return None if response is EOF else response
    return None


OPEN = Open(group="billing", topic="orders", worker="w", timeout_ms=20_000)


def batch(first: int, count: int) -> dict[str, Any]:
    """Messages with delivery numbers from `first`. Ten in a row of each hundred are poison."""
    kinds = {number: "poison" if number % 100 // 10 == 5 else "ok" for number in range(first, first + count)}
    return {"first_delivery": first, "messages": [{"value": body(n, kind)} for n, kind in kinds.items()]}


async def test_results_come_in_ascending_ranges_that_do_not_touch_and_credit_never_shrinks(
    stream: Any,
) -> None:
    await stream.write(DeliverRequest(open=OPEN))
    first = await next_response(stream)
    assert first is not None
    assert (first.accept.max_request_bytes, first.credit.deliveries) == (16 << 20, 300)
    credit, size = first.credit.deliveries, first.credit.bytes
    seen: Counter[int] = Counter()
    sent = sent_bytes = 0
    while sum(seen.values()) < 3_000:
        while sent < 3_000 and sent + 100 <= credit:
            request = DeliverRequest(batches=[batch(sent, 100)])
            await stream.write(request)
            sent, sent_bytes = sent + 100, sent_bytes + request.ByteSize()
        response = await next_response(stream)
        assert response is not None
        assert credit <= response.credit.deliveries
        assert size <= response.credit.bytes
        credit, size = response.credit.deliveries, response.credit.bytes
        stashed = [stash.deliveries for stash in response.results.stashed]
        for spans in (list(response.results.acknowledged), stashed):
            assert all(span.start < span.end for span in spans)
            assert all(low.end < high.start for low, high in pairwise(spans)), (
                "ranges that touch must be one range"
            )
            seen.update(number for span in spans for number in range(span.start, span.end))
    assert seen == dict.fromkeys(range(3_000), 1)

    await stream.write(DeliverRequest(drain=True))
    while (response := await next_response(stream)) is not None:
        credit, size = response.credit.deliveries, response.credit.bytes
    assert (credit, size) == (3_300, first.credit.bytes + sent_bytes)
    assert await stream.code() is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("status", "requests"),
    [
        ("INVALID_ARGUMENT", [DeliverRequest(drain=True)]),  # without `open`
        ("INVALID_ARGUMENT", [DeliverRequest(open=OPEN, batches=[batch(0, 301)])]),  # beyond the credit
        ("INVALID_ARGUMENT", [DeliverRequest(open=OPEN), DeliverRequest(batches=[batch(1, 1)])]),  # a gap
        ("NOT_FOUND", [DeliverRequest(open=Open(group="billing", topic="refunds"))]),
    ],
)
async def test_a_breach_of_the_contract_ends_the_stream_with_the_documented_status(
    stream: Any, status: str, requests: list[DeliverRequest]
) -> None:
    for request in requests:
        await stream.write(request)
    while await next_response(stream) is not None:
        pass

    assert await stream.code() is grpc.StatusCode[status]
