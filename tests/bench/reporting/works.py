"""A question answered once by one engine, in a process of its own: `python -m tests.bench.reporting.works
JSON`.

Its last line on standard output is a JSON object: `seconds` (from the first look at the files to the answer),
`start_s` (what making Spark's session, or the connection, took before), `answer`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
from duckdb import DuckDBPyConnection
from pyspark.sql import SparkSession

from app.archive.layout import RECORDS
from spark.dashboard.decode import WINDOWS
from spark.dashboard.store import STATE
from spark.session import make_session
from tests.bench.reporting import audits, duck, ours, plain, records
from tests.bench.reporting.files import cores

OURS, DUCK, PLAIN = "spark", "duckdb", "python"
REPORT, RANGE, COUNTS, OFFSETS, CONTENTS = "report", "time range", "counts", "by offset", "by content"
RANGE_MS = 600_000
RANGE_TOPIC = records.TOPICS[0]


class Work(msgspec.Struct, frozen=True):
    """One question to one engine.

    Attributes:
        rows: The requested audit rows or records, by which the data was made.
        limit: Records that `CONTENTS` compares.
        conf: Spark's configuration, in addition to every job's.
    """

    engine: str
    work: str
    folder: str
    rows: int
    limit: int = 0
    conf: dict[str, str] = {}

    @property
    def store(self) -> Path:
        return Path(self.folder, "store")

    @property
    def archive(self) -> Path:
        return Path(self.folder, "archive")

    @property
    def copy(self) -> Path:
        return Path(self.folder, "copy")

    @property
    def scratch(self) -> Path:
        """A folder for the engines' temporary files."""
        path = Path(self.folder, "scratch")
        path.mkdir(exist_ok=True)
        return path


def answer(work: Work) -> dict[str, Any]:
    """Seconds, start and answer."""
    if work.engine == PLAIN:
        return _timed(0.0, lambda: plain.report(work.store, work.rows))
    began_s = time.monotonic()
    if work.engine == DUCK:
        with closing(duck.connect(work.scratch, cores())) as connection:
            return _timed(time.monotonic() - began_s, lambda: ask_duck(connection, work))
    if work.work == RANGE:
        return _timed(0.0, lambda: ours.time_range(work.archive, RANGE_TOPIC, *_range(work)))
    spark = make_session("bench", {"spark.local.dir": str(work.scratch)} | work.conf)
    try:
        return _timed(time.monotonic() - began_s, lambda: ask_spark(spark, work))
    finally:
        spark.stop()


def ask_duck(connection: DuckDBPyConnection, work: Work) -> Any:
    """DuckDB's answer."""
    match work.work:
        case "report":
            windows = f"{STATE}/topic={WINDOWS}/*/*.parquet"
            files = {
                region: sorted(map(str, (work.store / region).glob(windows))) for region in audits.PLACES
            }
            return duck.report(connection, files, work.scratch)
        case "time range":
            all_of_topic = str(work.archive / RECORDS / f"topic={RANGE_TOPIC}" / "**" / "*.parquet")
            return duck.time_range(connection, all_of_topic, *_range(work))
        case "counts":
            return duck.counts(connection, _files(work.archive))
        case "by offset":
            return duck.offsets(connection, _pairs(work))
        case _:
            return duck.contents(connection, _pairs(work, work.limit), work.scratch)


def ask_spark(spark: SparkSession, work: Work) -> Any:
    """Spark's answer."""
    match work.work:
        case "report":
            return ours.report(spark, work.store, work.rows)
        case "counts":
            return ours.counts(spark, _files(work.archive))
        case "by offset":
            return ours.offsets(spark, _pairs(work))
        case _:
            return ours.contents(spark, _pairs(work, work.limit), work.scratch / "pairs")


def _timed(start_s: float, ask: Callable[[], Any]) -> dict[str, Any]:
    began_s = time.monotonic()
    found = ask()
    return {"seconds": time.monotonic() - began_s, "start_s": start_s, "answer": found}


def _range(work: Work) -> tuple[int, int]:
    """Ten minutes in the middle of the archive."""
    from_ms = records.START_MS + records.hours_of(work.rows) // 2 * records.HOUR_MS + RANGE_MS
    return from_ms, from_ms + RANGE_MS


def _files(root: Path, topic: str = "*") -> list[str]:
    return sorted(map(str, root.glob(f"{RECORDS}/topic={topic}/date=*/hour=*/*.parquet")))


def _pairs(work: Work, limit: int | None = None) -> list[tuple[list[str], list[str]]]:
    """Topic by topic the archive's files and the copy's; of the first hours, up to `limit` records."""
    hours = records.hours_of(work.rows)
    if limit is not None:
        hours = max(1, min(hours, limit // (records.an_hour(work.rows) * len(records.TOPICS))))
    return [
        (_files(work.archive, topic)[:hours], _files(work.copy, topic)[:hours]) for topic in records.TOPICS
    ]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(msgspec.json.decode(sys.argv[1], type=Work))) + "\n")
