"""A range that Spark's connector cannot read is read without it or reported; it delays no other range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from app.archive.errors import Unreachable, UnreadableTopic
from app.archive.log import Archive
from app.archive.reader import ArchiveQuery, ArchiveReader
from spark.archive.ingest import IngestResult, run_round
from spark.dashboard.fold import fold_round
from spark.raw_ranges import Examined
from spark.reading import Doubts, read_around, read_whole
from spark.topics import ALL, KafkaTopic, Range, UnreadRange
from tests.spark.archiving import Frames
from tests.spark.conftest import NOON_MS, row
from tests.spark.test_dashboard import NOW_MS, entries, two_regions

WHY = "its checksum does not match"
DAMAGED_AT = 3
ROWS = [row(offset, topic=topic) for topic in ("orders", "stock") for offset in range(6)]


@dataclass(slots=True)
class Odd(Frames):
    """A cluster where the connector cannot read the topics of `failing_topics`.

    Attributes:
        damaged: The offset from which a topic cannot be read at all, by topic.
        calls: The names of the methods that were called, in order.
    """

    failing_topics: set[str] = field(default_factory=set)
    damaged: Mapping[str, int] = field(default_factory=dict)
    is_away: bool = False
    calls: list[str] = field(default_factory=list)

    def read(self, ranges: Sequence[Range], raw: Sequence[Range] = ()) -> DataFrame:
        """The rows of these ranges; fails as Spark does."""
        if any(one.topic in self.failing_topics for one in ranges):
            raise PySparkException("long overflow")
        return Frames.read(self, ranges, raw)

    def failing(self, ranges: Sequence[Range]) -> list[Range]:
        """The ranges of `failing_topics`."""
        self.calls.append("failing")
        return [one for one in ranges if one.topic in self.failing_topics]

    def examined(self, ranges: Sequence[Range]) -> list[Examined]:
        """Each range up to the damage."""
        self.calls.append("examined")
        found = []
        for one in ranges:
            reached = max(one.start, min(self.damaged.get(one.topic, one.end), one.end))
            is_odd = one.topic in self.failing_topics
            found.append(Examined(one, reached, is_odd, WHY if reached < one.end else "", self.is_away))
        return found


def archive_round(archive: Archive, source: Frames, limit: int = 1_000) -> IngestResult:
    return run_round(archive, source, ".*", limit, NOON_MS)


def offsets(archive: Archive, topic: str) -> list[int]:
    """The archived offsets of the topic."""
    return [one.offset for one in ArchiveReader(archive).records(ArchiveQuery(topic))]


def test_a_range_that_cannot_be_read_stays_where_it_is_and_holds_up_no_other(
    session: SparkSession, archive: Archive, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Odd(session, list(ROWS), failing_topics={"stock"}, damaged={"stock": DAMAGED_AT})
    unread = UnreadRange("stock", 0, DAMAGED_AT, 6, WHY)
    assert archive_round(archive, source).unread == (unread,)
    assert "connector cannot read stock [0]: long overflow; reading without it" in capsys.readouterr().err
    assert str(unread) == f"stock [0], offsets 3 to 5: cannot be read: {WHY}"
    assert offsets(archive, "orders") == [0, 1, 2, 3, 4, 5]
    assert offsets(archive, "stock") == [0, 1, 2]
    before = archive.state().number
    assert archive_round(archive, source).unread == (unread,)
    assert archive.state().number == before, "a round that archived nothing made a change"

    source.rows.append(row(6, topic="orders"))
    source.calls.clear()
    assert archive_round(archive, source).records == 1
    assert source.calls == ["examined"], "the connector was tried again on a range that it cannot read"
    source.failing_topics, source.damaged = set(), {}
    result = archive_round(archive, source)
    assert (result.records, result.unread, source.suspects) == (3, (), set())
    assert offsets(archive, "stock") == [0, 1, 2, 3, 4, 5]


def test_records_behind_a_damage_do_not_keep_a_single_run_going(
    session: SparkSession, archive: Archive
) -> None:
    source = Odd(session, list(ROWS), failing_topics={"stock"}, damaged={"stock": 0})
    left = [archive_round(archive, source, limit=4).left for _ in range(3)]
    assert left == [4, 2, 0]
    assert offsets(archive, "orders") == [0, 1, 2, 3, 4, 5]


def test_a_failure_that_no_range_explains_is_the_callers(session: SparkSession) -> None:
    source = Odd(session, list(ROWS))

    def use(_: DataFrame) -> None:
        raise PySparkException("the disk is full")

    with pytest.raises(PySparkException, match="the disk is full"):
        read_around(source, [Range("orders", 0, 0, 6)], use, lambda _: Doubts())
    assert source.suspects == set()


def test_a_round_on_a_cluster_that_is_away_fails_as_unreachable(
    session: SparkSession, archive: Archive
) -> None:
    source = Odd(session, list(ROWS), failing_topics={"stock"}, damaged={"stock": 0}, is_away=True)
    with pytest.raises(Unreachable, match=WHY):
        archive_round(archive, source)
    assert archive.state().number == 0


def test_reading_a_whole_topic_fails_with_the_range_that_cannot_be_read(session: SparkSession) -> None:
    source = Odd(session, list(ROWS), failing_topics={"stock"}, damaged={"stock": DAMAGED_AT})
    with pytest.raises(UnreadableTopic, match=r"stock \[0\], offsets 3 to 5: cannot be read: its checksum"):
        read_whole(source, [Range("stock", 0, 0, 6)], DataFrame.count, lambda _: Doubts())
    source.damaged = {}
    assert read_whole(source, [Range("stock", 0, 0, 6)], DataFrame.count, lambda _: Doubts()) == 6


def test_a_topic_that_the_client_may_not_describe_is_named_by_each_round(
    session: SparkSession, archive: Archive
) -> None:
    undescribed = UnreadRange("locked", ALL, -1, -1, "Not authorized")

    @dataclass(slots=True)
    class Locked(Frames):
        def topics(self, pattern: str) -> dict[str, KafkaTopic]:
            """The topics, and one that the client may not describe."""
            return Frames.topics(self, pattern) | {"locked": KafkaTopic("locked", "", {}, (undescribed,))}

    source = Locked(session, list(ROWS))
    assert [archive_round(archive, source).unread for _ in range(2)] == [(undescribed,), (undescribed,)]
    assert offsets(archive, "stock") == [0, 1, 2, 3, 4, 5]
    assert str(undescribed) == "locked: cannot be read: Not authorized"


def test_a_changelog_that_cannot_be_read_holds_up_no_other_table(
    session: SparkSession, tmp_path: Path
) -> None:
    region, _ = two_regions()
    bad = f"{region.topics.app_id}-trackers-changelog"
    source = Odd(session, region.rows, failing_topics={bad}, damaged={bad: 0})
    archive = Archive.create(tmp_path / "east", "cluster-east")
    result = fold_round(archive, source, "east", 10_000, NOW_MS)
    assert result.unread == (UnreadRange(bad, 0, 0, 1, WHY),)
    assert (result.offsets, result.left) == (len(region.rows) - 1, 0)
    assert {table for table, _ in entries(session, tmp_path, "east")} >= {"workloads", "assignments"}
    source.failing_topics, source.damaged = set(), {}
    result = fold_round(archive, source, "east", 10_000, NOW_MS)
    assert (result.offsets, result.unread) == (1, ())
    assert "trackers" in {table for table, _ in entries(session, tmp_path, "east")}
