"""One Spark session for all tests of this folder, and helpers that build frames of Kafka records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from app.archive.log import Archive
from spark.schemas import RECORD
from spark.session import LOGGING, make_session

SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile={LOGGING.as_uri()}",
    "spark.sql.codegen.wholeStage": "false",  # compiling takes longer than a tiny frame
    "spark.sql.adaptive.enabled": "false",  # nothing to adapt in tiny frames
}
HOUR_MS = 3_600_000
NOON_MS = 1_763_812_800_000  # 2025-11-22T12:00Z


@pytest.fixture(scope="session")
def session() -> Iterator[SparkSession]:
    """A local Spark session with two cores and 1 GB; it stops when the tests end."""
    started = make_session("tests", SETTINGS)
    yield started
    started.stop()


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """An empty archive of the cluster `cluster`."""
    return Archive.create(tmp_path / "archive", "cluster")


Row = tuple[str, int, int, int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]] | None]


def row(
    offset: int,
    value: bytes | None = None,
    *,
    partition: int = 0,
    topic: str = "orders",
    at_ms: int | None = None,
    key: bytes | None = None,
    headers: list[tuple[str, bytes | None]] | None = None,
) -> Row:
    """A record. Its value defaults to partition and offset, its time to noon plus `offset` seconds."""
    content = f"{partition}-{offset}".encode() if value is None else value
    timestamp_ms = NOON_MS + offset * 1_000 if at_ms is None else at_ms
    return (topic, partition, offset, timestamp_ms, 0, key, content or None, headers)


def frame(session: SparkSession, *rows: Row) -> DataFrame:
    """The records as a frame with the columns that jobs read."""
    return session.createDataFrame(list(rows), RECORD)
