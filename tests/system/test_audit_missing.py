"""The audit names the records that are missing at the next tier, and copies them again once: real workers,
clusters and a route.
"""

from __future__ import annotations

import asyncio
import csv
import io
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from click.testing import CliRunner, Result

from app.cli.main import switchyard
from app.controllog import codec
from app.dev.demo.stage import DemoStage, Process, http, route, wait_until
from app.dev.demo.traffic import create_topic
from app.kafka.client.cluster import LATEST, READ_COMMITTED
from app.kafka.fetch.decoder import records_of
from app.kafka.fetch.span_reader import read_span
from app.kafka.records.batch import ReadCommittedFilter, iter_batches
from switchyard.audit.model.fingerprint import ids_of
from switchyard.audit.model.reports import Scope, client_report
from switchyard.audit.model.tally import RecordArrays, Tally
from tests.audit.query.arrays import numbers
from tests.kafka.conftest import connected, producing
from tests.system.test_audit import AWAY, ENOUGH_S, HOME, WIDTH_MS, audit_rows, plan
from tests.system.test_audit_alerts import is_leader

pytestmark = pytest.mark.system

PARTITIONS = 2
LONG_MS = 20_000  # a window in which a route is paused, reset and resumed
SETTLED = ("ok", "lossy", "duplicated", "corrupted", "late")
RecordFields = dict[str, Any]


def audit_command(worker: Process, subcommand: str, topic: str, start_ms: int, *options: str) -> Result:
    """Runs an audit command about a window."""
    command = ["audit", subcommand, "--topic", topic, "--start", str(start_ms), "--url", worker.url, *options]
    return CliRunner().invoke(switchyard, command)


def missing_rows(worker: Process, topic: str, start_ms: int) -> list[tuple[str, ...]]:
    """Kind, partition and offset in the source, partition and offset in the copy."""
    answer = audit_command(worker, "missing", topic, start_ms, "--again", "-o", "csv")
    assert answer.exit_code in {0, 8}, answer.output
    rows = csv.DictReader(io.StringIO(answer.stdout))
    columns = ("kind", "partition", "offset", "copy_partition", "copy_offset")
    return sorted(tuple(row[name] for name in columns) for row in rows)


def findings_as(worker: Process, query: str, media_type: str) -> str:
    """The findings in this media type."""
    request = urllib.request.Request(  # noqa: S310 - our own worker
        f"{worker.url}/api/v1/audit/missing?{query}", headers={"Accept": media_type}
    )
    with urllib.request.urlopen(request, timeout=ENOUGH_S) as answer:  # noqa: S310
        assert answer.headers["Content-Type"].partition(";")[0] == media_type
        return str(answer.read().decode())


def next_window() -> int:
    """Waits for the next window to begin; records written at once lie in it."""
    now_ms = time.time_ns() // 1_000_000
    start_ms = now_ms - now_ms % WIDTH_MS + WIDTH_MS
    time.sleep((start_ms - now_ms) / 1000 + 0.05)
    return start_ms


async def write(bootstrap: str, topic: str, records: list[RecordFields]) -> None:
    async with producing(bootstrap) as producer:
        for one in [await producer.send(topic, **record) for record in records]:
            await one


async def delete_records_before(bootstrap: str, topic: str, before: dict[int, int]) -> None:
    """Deletes the records before these offsets, as retention does."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.delete_records(
            {TopicPartition(topic, p): RecordsToDelete(before_offset=offset) for p, offset in before.items()}
        )
    finally:
        await admin.close()


def verdict_of(worker: Process, topic: str, start_ms: int) -> dict[str, Any]:
    """The audit's current verdict on a window."""
    query = "&".join(f"state={state}" for state in (*SETTLED, "provisional", "absent-audit"))
    status, body = http("GET", f"{worker.url}/api/v1/audit/loss?topic={topic}&{query}&limit=1000")
    rows = body["items"] if status == 200 else []
    none = {"state": "unknown", "closed": False, "missing": -1}
    return next((row for row in rows if row["start_ms"] == start_ms), none)


def wait_closed_verdict(
    worker: Process,
    topic: str,
    start_ms: int,
    *bootstraps: str,
    also: Callable[[], None] = lambda: None,
    width_ms: int = WIDTH_MS,
) -> dict[str, Any]:
    """The audit's final verdict on a window. Later records in these clusters, and `also`, move the watermarks
    on."""
    found: list[dict[str, Any]] = []

    def closed() -> bool:
        now_ms = time.time_ns() // 1_000_000
        if now_ms < start_ms + width_ms:  # an earlier tick would lie in the window
            return False
        tick = [{"partition": p, "value": b"tick", "timestamp_ms": now_ms} for p in range(PARTITIONS)]
        for bootstrap in bootstraps:
            asyncio.run(write(bootstrap, topic, tick))
        also()
        found[:] = [verdict_of(worker, topic, start_ms)]
        return found[0]["state"] in SETTLED and bool(found[0]["closed"])

    wait_until(closed, ENOUGH_S, lambda: str(audit_rows(worker, "windows", topic=topic)), 1.0)
    return found[0]


def test_missing_doubled_and_altered_records_are_named_and_missing_ones_copied_again_once(
    stage: DemoStage, topic_name: str
) -> None:
    home, away = stage.yard.bootstrap(HOME), stage.yard.bootstrap(AWAY)
    for bootstrap in (home, away):
        asyncio.run(create_topic(bootstrap, topic_name, PARTITIONS))
    worker = stage.worker()
    stage.deploy(worker, plan("all", topic_name, clusters=["regional", "aggregate"], id={"header": "id"}))
    warm = [{"partition": p, "value": b"warm"} for p in range(PARTITIONS)]
    asyncio.run(write(home, topic_name, warm))
    asyncio.run(write(away, topic_name, warm))
    wait_until(lambda: len(audit_rows(worker, "windows", topic=topic_name)) >= 2, ENOUGH_S, worker.tail)
    start_ms = next_window()
    written: list[RecordFields] = [
        {"partition": n % PARTITIONS, "key": b"k%d" % n, "value": b"v%d" % n, "timestamp_ms": start_ms + n,
         "headers": [("id", b"id-%d" % n), ("h", b"x")]}
        for n in range(400)
    ]  # fmt: skip
    copied = [one for n, one in enumerate(written) if n not in {10, 11, 312}]
    copied += [written[20], {**written[30], "value": b"other"}]
    copied.remove(written[30])
    asyncio.run(write(home, topic_name, written))
    asyncio.run(write(away, topic_name, copied))
    too_early = audit_command(worker, "copy-again", topic_name, start_ms, "--execute", "--yes")
    assert (too_early.exit_code, "Not final" in too_early.output) == (5, True), too_early.output
    assert wait_closed_verdict(worker, topic_name, start_ms, home, away)["state"] == "lossy"
    first = dict.fromkeys(range(PARTITIONS), 1)  # behind the first record of each partition
    lost = [
        ("missing", str(n % PARTITIONS), str(n // PARTITIONS + first[n % PARTITIONS]), "", "")
        for n in (10, 11, 312)
    ]
    rows = missing_rows(worker, topic_name, start_ms)
    assert sorted(row[:3] for row in rows if row[0] == "missing") == sorted(row[:3] for row in lost)
    assert Counter(row[0] for row in rows) == {"missing": 3, "doubled": 1, "altered": 1}
    answer = audit_command(worker, "missing", topic_name, start_ms, "-o", "json")
    assert answer.exit_code == 8
    items = orjson.loads(answer.stdout)["items"]
    assert {(one["kind"], one["id"]) for one in items} == {
        ("missing", "id-10"), ("missing", "id-11"), ("missing", "id-312"), ("doubled", "id-20"),
        ("altered", "id-30"),
    }  # fmt: skip
    query = f"topic={topic_name}&from_tier=regional&to_tier=aggregate&start={start_ms}"
    page = http("GET", f"{worker.url}/api/v1/audit/missing?{query}&limit=2")[1]
    assert (len(page["items"]), page["next"]) == (2, "2")
    file = list(csv.DictReader(io.StringIO(findings_as(worker, query, "text/csv"))))
    assert {(one["kind"], one["id"]) for one in file} == {(one["kind"], one["id"]) for one in items}
    lines = findings_as(worker, query, "application/x-ndjson").splitlines()
    assert [orjson.loads(line) for line in lines] == items
    status, problem = http("GET", f"{worker.url}/api/v1/audit/missing?{query}&limit=2&format=csv")
    assert (status, "which has all rows" in problem["detail"]) == (400, True)

    dry_run = audit_command(worker, "copy-again", topic_name, start_ms)
    assert (dry_run.exit_code, "3 records" in dry_run.stderr, "dry run" in dry_run.stderr) == (
        0,
        True,
        True,
    ), dry_run.output
    assert len(missing_rows(worker, topic_name, start_ms)) == 5, "nothing was changed"
    done = audit_command(worker, "copy-again", topic_name, start_ms, "--execute", "--yes", "-o", "json")
    assert done.exit_code == 0, done.output
    assert orjson.loads(done.stdout)["copied"] == 3
    assert Counter(row[0] for row in missing_rows(worker, topic_name, start_ms)) == {
        "doubled": 1,
        "altered": 1,
    }
    wait_until(
        lambda: verdict_of(worker, topic_name, start_ms)["missing"] == 0, ENOUGH_S, worker.tail, 0.5
    )  # the audit has counted them, too
    activity = http("GET", f"{worker.url}/api/v1/activity?limit=200")[1]["items"]
    (act,) = [one for one in activity if one.get("action") == "audit-copy-again"]
    assert "3 of 3 missing records" in act["detail"]
    assert "(command line)" in act["actor"]

    asyncio.run(delete_records_before(home, topic_name, {0: 100}))
    after_deletion = audit_command(worker, "missing", topic_name, start_ms, "--again", "-o", "json")
    answer = orjson.loads(after_deletion.stdout)
    unread = {(one["cluster"], one["partition"], one["end"]) for one in answer["unread"]}
    assert (after_deletion.exit_code, unread) == (0, {(HOME, 0, 100)}), (
        "records that retention deleted are no loss"
    )
    assert (answer["counts"]["missing"], answer["counts"]["foreign"]) == (0, 0)
    assert answer["counts"]["unclear"] >= 99


@pytest.mark.deep(minutes=3.0)
def test_copy_again_finishes_without_duplicates_after_its_leader_was_killed(
    stage: DemoStage, topic_name: str
) -> None:
    """The leader is killed between two partitions: an open transaction of another producer blocks the second
    one."""
    home, away = stage.yard.bootstrap(HOME), stage.yard.bootstrap(AWAY)
    for bootstrap in (home, away):
        asyncio.run(create_topic(bootstrap, topic_name, PARTITIONS))
    workers = [stage.worker() for _ in range(2)]
    stage.deploy(workers[0], plan("all", topic_name, clusters=["regional", "aggregate"]))
    warm: list[RecordFields] = [{"partition": p, "value": b"warm"} for p in range(PARTITIONS)]
    for bootstrap in (home, away):
        asyncio.run(write(bootstrap, topic_name, warm))
    wait_until(
        lambda: len(audit_rows(workers[0], "windows", topic=topic_name)) >= 2, ENOUGH_S, workers[0].tail
    )
    start_ms = next_window()
    written: list[RecordFields] = [
        {"partition": n % PARTITIONS, "value": b"v%d" % n, "timestamp_ms": start_ms + n} for n in range(300)
    ]
    asyncio.run(write(home, topic_name, written))
    asyncio.run(write(away, topic_name, written[:100]))
    assert wait_closed_verdict(workers[0], topic_name, start_ms, home, away)["missing"] == 200
    asyncio.run(_kill_leader_during_copy(workers, away, topic_name, start_ms))
    (survivor,) = workers
    wait_until(lambda: is_leader(survivor, survivor), ENOUGH_S, survivor.tail)

    done: list[Result] = []

    def copies_again() -> bool:
        done[:] = [
            audit_command(survivor, "copy-again", topic_name, start_ms, "--execute", "--yes", "-o", "json")
        ]
        return done[0].exit_code == 0

    # The first copies arrived late, so the audit waits two minutes and more for others.
    wait_until(copies_again, 4 * ENOUGH_S, lambda: done[0].output + survivor.tail(), 1.0)
    values = Counter(asyncio.run(committed_values(away, topic_name)))
    assert values - Counter({b"warm": PARTITIONS, b"tick": values[b"tick"]}) == Counter(
        record["value"] for record in written
    )


async def _kill_leader_during_copy(workers: list[Process], away: str, topic: str, start_ms: int) -> None:
    """Kills the leader once the first partition's records are copied, and the second's are not."""
    leader = next(worker for worker in workers if is_leader(worker, workers[0]))
    workers.remove(leader)
    async with producing(away, transactional_id=topic) as other:
        await other.begin_transaction()
        await other.send_and_wait(topic, b"other", partition=1)
        copying = asyncio.create_task(
            asyncio.to_thread(audit_command, leader, "copy-again", topic, start_ms, "--execute", "--yes")
        )
        async with asyncio.timeout(ENOUGH_S):
            while (await committed_values(away, topic, 0)).count(b"v298") != 1:  # noqa: ASYNC110 - of a broker
                await asyncio.sleep(0.2)
        await asyncio.to_thread(leader.kill)
        await other.abort_transaction()
        await asyncio.wait([copying])


async def committed_values(bootstrap: str, topic: str, *partitions: int) -> list[bytes | None]:
    """The values that a read_committed consumer finds now."""
    found: list[bytes | None] = []
    async with connected(bootstrap) as client:
        wanted = [(topic, number) for number in partitions or range(PARTITIONS)]
        ends = await client.offsets(wanted, LATEST, READ_COMMITTED)
        for (_, number), end in ends.items():
            async for piece in read_span(client, topic, number, 0, end):
                shown = ReadCommittedFilter(piece.aborted)
                batches = (batch for batch in iter_batches(piece.data) if shown.shows(batch))
                found += [record.value for batch in batches for record in records_of(batch)]
    return found


@pytest.mark.deep(minutes=1.0)
def test_records_that_a_route_skipped_are_named_although_all_records_are_equal(
    stage: DemoStage, topic_name: str
) -> None:
    home = stage.yard.bootstrap(HOME)
    asyncio.run(create_topic(home, topic_name, PARTITIONS))
    worker = stage.worker()
    stage.deploy(
        worker, plan("all", topic_name, clusters=["regional", "aggregate"], window=f"{LONG_MS // 1_000}s")
    )
    name = f"copy-{topic_name}"[:60]
    stage.deploy(worker, route(name, HOME, AWAY, topic_name, checkpoint={"every": "1s"}))
    now_ms = time.time_ns() // 1_000_000
    start_ms = now_ms - now_ms % LONG_MS + LONG_MS
    wait_until(lambda: time.time_ns() // 1_000_000 > start_ms, 30.0, worker.tail)
    same: RecordFields = {"partition": 0, "value": b"same", "timestamp_ms": start_ms + 1}

    def change(what: str, *options: str) -> None:
        command = ["route", what, name, *options, "--url", worker.url]
        done = CliRunner().invoke(switchyard, command)
        assert done.exit_code == 0, done.output

    def copied(count: int) -> bool:
        return counted_at(worker, topic_name, start_ms, "aggregate") == count

    asyncio.run(write(home, topic_name, [same] * 100))
    wait_until(lambda: copied(100), ENOUGH_S, worker.tail)
    change("pause", "--execute", "--yes")
    asyncio.run(write(home, topic_name, [same] * 10))
    wait_until(
        lambda: {row[:3] for row in missing_rows(worker, topic_name, start_ms)}
        == {("waiting", "0", str(offset)) for offset in range(100, 110)},
        ENOUGH_S, worker.tail, 0.5,
    )  # fmt: skip
    change("reset", "--topic", topic_name, "--partition", "0", "--to-offset", "110", "--execute", "--yes")
    change("resume", "--execute", "--yes")
    asyncio.run(write(home, topic_name, [same] * 50))
    wait_until(lambda: copied(150), ENOUGH_S, worker.tail)
    verdict = wait_closed_verdict(worker, topic_name, start_ms, home, width_ms=LONG_MS)
    assert (verdict["state"], verdict["missing"]) == ("lossy", 10)
    rows = missing_rows(worker, topic_name, start_ms)
    assert [row[:3] for row in rows] == [("missing", "0", str(offset)) for offset in range(100, 110)]
    done = audit_command(worker, "copy-again", topic_name, start_ms, "--execute", "--yes", "-o", "json")
    assert (done.exit_code, orjson.loads(done.stdout)["copied"]) == (0, 10), done.output
    assert missing_rows(worker, topic_name, start_ms) == []
    wait_until(
        lambda: wait_closed_verdict(worker, topic_name, start_ms, home, width_ms=LONG_MS)["missing"] == 0,
        ENOUGH_S,
        worker.tail,
    )
    second_copy = audit_command(worker, "copy-again", topic_name, start_ms, "--execute", "--yes")
    assert (second_copy.exit_code, "nothing is missing" in second_copy.stderr) == (0, True), (
        second_copy.output
    )


class ReportingConsumer:
    """Reports the records that it handled, and its watermark."""

    def __init__(self, worker: Process, topic: str) -> None:
        self._url = f"{worker.url}/api/v1/audit/reports"
        self._scope = Scope(topic, "consumer", "app", WIDTH_MS)
        self._number = 0

    def report(self, *records: RecordFields) -> None:
        tally, now_ms = Tally(WIDTH_MS), time.time_ns() // 1_000_000
        if records:
            ids = ids_of([record["headers"][0][1] for record in records])
            times_ms = numbers([record["timestamp_ms"] for record in records])
            tally.add(RecordArrays(times_ms, numbers([1] * len(records)), ids=ids))
        report = client_report(
            self._scope, "app@1", self._number, tally.totals(), at_ms=now_ms, watermark_ms=now_ms - 500
        )
        request = urllib.request.Request(  # noqa: S310 - our own worker
            self._url, codec.encode(report), {"Content-Type": "application/x-ndjson"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            assert orjson.loads(answer.read()) == {"taken": 1}
        self._number += 1


@pytest.mark.deep(minutes=0.5)
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_up_to_two_records_that_a_consumer_did_not_handle_are_named_from_sums_of_ids(
    stage: DemoStage, topic_name: str, lost: int
) -> None:
    home = stage.yard.bootstrap(HOME)
    asyncio.run(create_topic(home, topic_name, PARTITIONS))
    worker = stage.worker()
    tiers = ["regional", "consumer"]
    stage.deploy(worker, plan("all", topic_name, clusters=["regional"], id={"header": "id"}, tiers=tiers))
    warm: list[RecordFields] = [{"partition": p, "value": b"warm"} for p in range(PARTITIONS)]
    asyncio.run(write(home, topic_name, warm))
    wait_until(lambda: audit_rows(worker, "windows", topic=topic_name), ENOUGH_S, worker.tail)
    consumer = ReportingConsumer(worker, topic_name)
    consumer.report()
    start_ms = next_window()
    written: list[RecordFields] = [
        {"partition": n % PARTITIONS, "value": b"v%d" % n, "timestamp_ms": start_ms + n,
         "headers": [("id", b"id-%d" % n)]}
        for n in range(200)
    ]  # fmt: skip
    asyncio.run(write(home, topic_name, written))
    consumer.report(*written[: 200 - lost])
    verdict = wait_closed_verdict(worker, topic_name, start_ms, home, also=consumer.report)
    assert (verdict["state"], verdict["missing"]) == ("lossy", lost)
    answer = audit_command(worker, "missing", topic_name, start_ms, "--to-tier", "consumer", "-o", "json")
    findings = orjson.loads(answer.stdout)
    names = [one["id"] for one in findings["items"]]
    assert answer.exit_code == 8
    if lost > 2:
        assert (names, findings["complete"], findings["differs"]) == ([], False, 3)
        assert "only sums of ids can name records" in answer.stderr
    else:
        assert sorted(names) == sorted(f"id-{n}" for n in range(200 - lost, 200))
        assert findings["complete"]
    refused = audit_command(worker, "copy-again", topic_name, start_ms, "--to-tier", "consumer")
    assert (refused.exit_code, "a tier without a log" in refused.output) == (5, True), refused.output


def counted_at(worker: Process, topic: str, start_ms: int, tier: str) -> int:
    rows = audit_rows(worker, "windows", topic=topic, tier=tier)
    return sum(row["count"] for row in rows if row["start_ms"] == start_ms)
