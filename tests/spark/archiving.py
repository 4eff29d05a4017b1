"""A Kafka cluster that is a list of rows, so that archiving rounds run without Kafka."""

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
        """The topics; the end offset of a partition follows its last row."""
        ends: dict[str, dict[int, LogBounds]] = {}
        for topic, partition, offset, *_ in self.rows:
            known = ends.setdefault(topic, {}).get(partition, LogBounds(0, 0))
            ends[topic][partition] = LogBounds(0, max(known.end, offset + 1))
        return {name: KafkaTopic(name, self.topic_id, partitions) for name, partitions in ends.items()}

    def failing(self, ranges: Sequence[Range]) -> list[Range]:
        """The connector can read every range."""
        return []

    def renumbering(self, ranges: Sequence[Range]) -> list[Range]:
        """No range has a batch whose offsets must be corrected."""
        return []

    def examined(self, ranges: Sequence[Range]) -> list[Examined]:
        """Every range is readable to its end."""
        return [Examined(wanted, wanted.end, is_odd=False) for wanted in ranges]

    def read(self, ranges: Sequence[Range], raw: Sequence[Range] = ()) -> DataFrame:
        """The rows of these ranges."""
        inside = f.lit(False)
        for wanted in (*ranges, *raw):
            in_partition = (f.col("topic") == wanted.topic) & (f.col("partition") == wanted.partition)
            inside |= in_partition & f.col("offset").between(wanted.start, wanted.end - 1)
        return frame(self.session, *self.rows).where(inside)


def archive_rows(session: SparkSession, archive: Archive, *rows: Row, topic_id: str = "id-1") -> IngestResult:
    """Runs a round over topics with these rows, which need not include the rows of earlier rounds."""
    return run_round(archive, Frames(session, list(rows), topic_id), ".*", 1_000_000, NOON_MS)
