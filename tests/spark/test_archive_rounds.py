"""Rounds of the archiving job: an outage ends none of those that go on, and a single one tells it."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from app.archive.errors import ConcurrentCommit, InvalidArchive, SparkJobError, Unreachable
from app.archive.log import Archive
from app.archive.reader import ArchiveQuery, ArchiveReader
from spark.jobs import archive as job
from spark.topics import KafkaTopic
from tests.spark.archiving import Frames
from tests.spark.conftest import row


class Ended(Exception):
    """What ends rounds that go on for ever."""


@dataclass(slots=True)
class Failing(Frames):
    """A cluster that fails so, one call after the other, and then answers."""

    failures: list[SparkJobError] = field(default_factory=list)
    asked: int = 0
    cluster: str = "cluster"

    def cluster_id(self) -> str:
        """Of the cluster that answers there."""
        self.asked += 1
        if self.failures and isinstance(self.failures[0], Unreachable):
            raise self.failures.pop(0)
        return self.cluster

    def topics(self, pattern: str) -> dict[str, KafkaTopic]:
        """With bounds behind the last row."""
        if self.failures:
            raise self.failures.pop(0)
        return Frames.topics(self, pattern)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long it slept between rounds; the third time ends the job."""
    found: list[float] = []

    def sleep(wanted_s: float) -> None:
        found.append(wanted_s)
        if len(found) == 3:
            raise Ended

    clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic, time_ns=time.time_ns)
    monkeypatch.setattr(job, "time", clock)  # and not the module, in which Spark's own threads sleep, too
    return found


def options(root: Path, *more: str) -> Namespace:
    parser = ArgumentParser()
    job.add_arguments(parser)
    given = ["--bootstrap", "127.0.0.1:1", "--topics", "orders", "--to", str(root), *more]
    return parser.parse_args(given)


def served(monkeypatch: pytest.MonkeyPatch, session: SparkSession, source: Any) -> None:
    """The job works with this cluster."""
    monkeypatch.setattr(job.common, "session", lambda *_: session)
    monkeypatch.setattr(job.common, "cluster", lambda *_: source)


def test_an_outage_ends_no_rounds_and_what_came_meanwhile_is_archived(
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    slept: list[float],
) -> None:
    lost = [SparkJobError("an executor was lost")] * job.common.TRIES
    source = Failing(session, [row(0), row(1)], failures=[Unreachable("b: no answer"), *lost])
    served(monkeypatch, session, source)
    with pytest.raises(Ended):
        job.run(options(tmp_path / "archive", "--every", "1h"))
    told = capsys.readouterr().err
    assert "b: no answer; the next round retries" in told
    assert "b: no answer; retrying" not in told  # at once it would not answer either
    assert "an executor was lost; the next round retries" in told
    assert all(0 < one_s <= 3600 for one_s in slept)
    reader = ArchiveReader(Archive.open(tmp_path / "archive"))
    assert [one.offset for one in reader.records(ArchiveQuery("orders"))] == [0, 1]


def test_a_single_round_tells_the_outage(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Failing(session, [row(0)], failures=[Unreachable("b: no answer")])
    served(monkeypatch, session, source)
    with pytest.raises(Unreachable, match="no answer"):
        job.run(options(tmp_path / "archive", "--once"))
    assert source.asked == 1


def test_what_the_next_round_cannot_mend_ends_all(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    Archive.create(tmp_path / "archive", "cluster")
    served(monkeypatch, session, Failing(session, [row(0)], cluster="another"))
    with pytest.raises(InvalidArchive, match="archive of cluster cluster, not of another"):
        job.run(options(tmp_path / "archive", "--every", "1h"))
    outdone: list[SparkJobError] = [ConcurrentCommit("another archiver")] * job.common.TRIES
    served(monkeypatch, session, Failing(session, [row(0)], failures=outdone))
    with pytest.raises(ConcurrentCommit, match="another archiver"):
        job.run(options(tmp_path / "archive", "--every", "1h"))
    monkeypatch.setattr(job.common, "ended", lambda _: True)
    served(monkeypatch, session, Failing(session, [row(0)], failures=[Unreachable("b: no answer")]))
    with pytest.raises(Unreachable):
        job.run(options(tmp_path / "archive", "--every", "1h"))
    assert slept == []
