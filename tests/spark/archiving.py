"""A cluster of frames: what a round reads, without Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from app.archive.log import Archive
from spark.archive.ingest import IngestResult, run_round
from spark.raw_ranges import Examined
from spark.topics import KafkaTopic, LogBounds, Range
from tests.spark.conftest import NOON_MS, Row, frame


@dataclass(slots=True)
class Frames:
    """Topics whose records are these rows, and whose ids are `topic_id`."""

    session: SparkSession
    rows: list[Row]
    topic_id: str = "id-1"
    suspects: set[tuple[str, int]] = field(default_factory=set)

    def topics(self, _pattern: str) -> dict[str, KafkaTopic]:
        """With bounds behind the last row."""
        ends: dict[str, dict[int, LogBounds]] = {}
        for topic, partition, offset, *_ in self.rows:
            known = ends.setdefault(topic, {}).get(partition, LogBounds(0, 0))
            ends[topic][partition] = LogBounds(0, max(known.end, offset + 1))
        return {name: KafkaTopic(name, self.topic_id, partitions) for name, partitions in ends.items()}

    def failing(self, ranges: Sequence[Range]) -> list[Range]:
        """None of them."""
        return []

    def renumbering(self, ranges: Sequence[Range]) -> list[Range]:
        """None of them."""
        return []

    def examined(self, ranges: Sequence[Range]) -> list[Examined]:
        """Nothing is the matter with any."""
        return [Examined(one, one.end, is_odd=False) for one in ranges]

    def read(self, ranges: Sequence[Range], raw: Sequence[Range] = ()) -> DataFrame:
        """The rows of these ranges."""
        inside = f.lit(False)
        for one in (*ranges, *raw):
            there = (f.col("topic") == one.topic) & (f.col("partition") == one.partition)
            inside |= there & f.col("offset").between(one.start, one.end - 1)
        return frame(self.session, *self.rows).where(inside)


def archive_rows(session: SparkSession, archive: Archive, *rows: Row, topic_id: str = "id-1") -> IngestResult:
    """A round over topics with these rows; rows of earlier rounds need not be among them."""
    return run_round(archive, Frames(session, list(rows), topic_id), ".*", 1_000_000, NOON_MS)
