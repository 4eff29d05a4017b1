"""Spark's jobs over the demo's data, with files in one folder. Each step is a command as people would type
it; its output is in `<folder>/<name>.log`.

<folder>/report.html, report.json   all regions: traffic, loss, owners
<folder>/size.json                  the workers and partitions that the measured loads need
<folder>/run-*/archive              the topic as Parquet files; store: the data of `dashboard`. One folder for
                                    each run, because its brokers differ from those of earlier runs
<folder>/verify-*.log               the topic compared with its copy, its archive, and the restored topic
<folder>/records.ndjson             records of a time range, from a worker, after the log has lost them
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from app.dev.yard import Yard
from app.kernel.json_types import JsonMapping

SPARK_JOB_TIMEOUT_S = 900.0  # for one job; the first one fetches the connector
TOO_LONG = 124  # the exit code of a job that took longer
MOST_IN_RANGE = 10_000
SWITCHYARD = "from app.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Story:
    """The inputs of the jobs, and the expected results."""

    topic: str
    source: str
    target: str
    worker: str  # a worker's address
    records: int
    from_ms: int  # a range of the records' timestamps, [from_ms, to_ms)
    to_ms: int
    in_range: int  # the number of records in it


@dataclass(frozen=True, slots=True)
class Step:
    """A command; `wrong` returns the problem with its result, "" for none."""

    name: str
    arguments: list[str]
    wrong: Callable[[JsonMapping], str]


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step."""

    name: str
    code: int
    took_s: float
    says: str
    sound: bool


def middle(times_ms: list[int]) -> tuple[int, int, int]:
    """The second quarter of these times, `MOST_IN_RANGE` at most: from, to, and the number of records;
    records of the last millisecond are not included."""
    times_ms = sorted(times_ms)
    first = len(times_ms) // 4
    from_ms = times_ms[first]
    to_ms = max(times_ms[min(2 * first, first + MOST_IN_RANGE)], from_ms + 1)
    return from_ms, to_ms, sum(from_ms <= at_ms < to_ms for at_ms in times_ms)


def steps(yard: Yard, folder: Path, run: Path, story: Story) -> list[Step]:
    """All steps in order. `run` is this run's folder."""
    regions = sorted({cluster.region for cluster in yard.clusters})
    control = {region: yard.bootstrap(f"{region}-regional") for region in regions}
    named = [part for region, at in control.items() for part in ("--region", f"{region}={at}")]
    store, archive = str(run / "store"), str(archive_of(run))
    at, copy, restored = yard.bootstrap(story.source), yard.bootstrap(story.target), f"{story.topic}-restored"
    written = ["--html", str(folder / "report.html"), "--json", str(folder / "report.json")]
    of = ["--bootstrap", at, "--topic", story.topic]
    times = ["--from", str(story.from_ms), "--to", str(story.to_ms)]
    restoring = ["restore", "--archive", archive, "--topic", story.topic, *times, "--bootstrap", at]
    every, ranged = {"records": story.records}, {"records": story.in_range}
    records = ["audit", "records", "--topic", story.topic, "--cluster", story.source, *times]
    records += ["--limit", "100000", "-o", "json", "--url", story.worker]
    return [
        _spark("dashboard", ["dashboard", *named, "--to", store, "--once"], quarantined=0, away={}),
        _spark("report", ["report", "--from-store", store, *written], **every, missing=0, extra=0),
        _spark("size", ["size", "--from-store", store, "--json", str(folder / "size.json")]),
        _spark("archive", ["archive", "--bootstrap", at, "--topics", story.topic, "--to", archive, "--once"],
               **every, quarantined=0),
        _spark("verify-copy",
               ["verify", "topic", *of, "--copy-bootstrap", copy, "--copy", story.topic],
               **every, findings={}),
        _spark("verify-archive", ["verify", "archive", *of, "--archive", archive], **every, findings={}),
        _spark("restore", [*restoring, "--into", restored, "--execute"], **ranged),
        _spark("verify-restored",
               ["verify", "topic", *of, "--copy-bootstrap", at, "--copy", restored, *times],
               **ranged, findings={}),
        Step("records", ["-c", SWITCHYARD, *records], _must(**ranged)),
    ]  # fmt: skip


def archive_of(run: Path) -> Path:
    """The path of a run's archive, which a worker's configuration names, too."""
    return run / "archive"


def new_run(folder: Path) -> Path:
    """A new folder for this run's store and archive."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="run-", dir=folder.absolute()))


def make(yard: Yard, folder: Path, run: Path, story: Story) -> Iterator[StepResult]:
    """Runs step by step, and yields each result. Before the last step the source's log loses the topic's
    records, as by retention, so the last answer comes from the archive."""
    for step in steps(yard, folder, run, story):
        if step.name == "records":
            asyncio.run(forget(yard.bootstrap(story.source), story.topic))
        yield ended(step, folder)


async def forget(bootstrap: str, topic: str) -> None:
    """Deletes all records of the topic, as retention does."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        described = await admin.describe_topics([topic])
        partitions = [TopicPartition(topic, one["partition"]) for one in described[0]["partitions"]]
        await admin.delete_records({one: RecordsToDelete(before_offset=-1) for one in partitions})  # -1: all
    finally:
        await admin.close()


def ended(step: Step, folder: Path, within_s: float = SPARK_JOB_TIMEOUT_S) -> StepResult:
    """Runs a step to its end. Its messages, and its output without records, go to `<folder>/<name>.log`."""
    began_s = time.monotonic()
    out = folder / (f"{step.name}.ndjson" if step.name == "records" else f".{step.name}.out")
    with (folder / f"{step.name}.log").open("wb") as words, out.open("wb") as output:
        try:
            code = subprocess.run(
                [sys.executable, *step.arguments], stdout=output, stderr=words, timeout=within_s, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            words.write(f"it did not end within {within_s:g} s\n".encode())
            code = TOO_LONG
    lines = out.read_bytes().splitlines()
    if step.name == "records":
        result: JsonMapping = {"records": len(lines)}
    else:
        result = _result(lines)
        with (folder / f"{step.name}.log").open("ab") as words:
            words.write(out.read_bytes())
        out.unlink()
    wrong = f"ended with {code}" if code else step.wrong(result)
    return StepResult(step.name, code, time.monotonic() - began_s, wrong or _result_words(result), not wrong)


def _spark(name: str, arguments: list[str], **must: Any) -> Step:
    return Step(name, ["-m", "spark", *arguments], _must(**must))


def _must(**must: object) -> Callable[[JsonMapping], str]:
    def wrong(result: JsonMapping) -> str:
        return ", ".join(
            f"{name} is {result.get(name)}, must be {value}"
            for name, value in must.items()
            if result.get(name) != value
        )

    return wrong


def _result(lines: list[bytes]) -> JsonMapping:
    try:
        found = orjson.loads(lines[-1])
    except (IndexError, orjson.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _result_words(result: JsonMapping) -> str:
    """The result in a few words."""
    words = [f"{value:,} {name}" for name, value in result.items() if name == "records"]
    words += [
        f"{name} {value or 'none' if name == 'findings' else value}"
        for name, value in result.items()
        if name in ("rows", "missing", "extra", "quarantined", "files", "findings")
    ]
    return ", ".join(words) or "done"
