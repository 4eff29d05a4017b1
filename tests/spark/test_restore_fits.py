"""On real Kafka: a restore to a topic whose limits only compressed records meet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from app.archive.log import Archive
from spark.__main__ import main
from spark.kafka import KafkaCluster
from tests.spark.archiving import archive_rows
from tests.spark.conftest import row
from tests.spark.test_end_to_end import create, last_result

LARGE = b"x" * 2_000_000
SMALL = {"max.message.bytes": "100000", "retention.bytes": "1000000"}


def test_records_that_fit_only_compressed_are_restored(
    session: SparkSession,
    bootstrap: str,
    topic_name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "archive"
    archive_rows(session, Archive.create(root, "cluster"), *(row(offset, LARGE) for offset in range(3)))
    asyncio.run(create(bootstrap, topic_name, 1, **SMALL))
    restoring = ("restore", "--archive", str(root), "--topic", "orders", "--bootstrap", bootstrap)
    assert main((*restoring, "--into", topic_name, "--execute")) == 0
    assert last_result(capsys)["records"] == 3
    (bounds,) = (
        KafkaCluster(session, bootstrap)
        .topics(topic_name.replace(".", r"\."))[topic_name]
        .partitions.values()
    )
    assert bounds.end >= 3
