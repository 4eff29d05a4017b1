"""Rounds of the archiving job: a periodic job survives an outage, and a single round reports it."""

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
    """Ends a job that would run rounds for ever."""


@dataclass(slots=True)
class Failing(Frames):
    """A cluster whose calls raise these failures one after the other, and then succeed."""

    failures: list[SparkJobError] = field(default_factory=list)
    id_requests: int = 0
    cluster: str = "cluster"

    def cluster_id(self) -> str:
        """The cluster's id, after any failure of type Unreachable."""
        self.id_requests += 1
        if self.failures and isinstance(self.failures[0], Unreachable):
            raise self.failures.pop(0)
        return self.cluster

    def topics(self, pattern: str) -> dict[str, KafkaTopic]:
        """The topics, after all failures."""
        if self.failures:
            raise self.failures.pop(0)
        return Frames.topics(self, pattern)


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Lists the job's sleeps between rounds in seconds; the third sleep ends the job."""
    sleeps_s: list[float] = []

    def sleep(duration_s: float) -> None:
        sleeps_s.append(duration_s)
        if len(sleeps_s) == 3:
            raise Ended

    clock = SimpleNamespace(sleep=sleep, monotonic=time.monotonic, time_ns=time.time_ns)
    monkeypatch.setattr(job, "time", clock)  # only for the job: Spark's own threads use the module, too
    return sleeps_s


def options(root: Path, *more: str) -> Namespace:
    parser = ArgumentParser()
    job.add_arguments(parser)
    given = ["--bootstrap", "127.0.0.1:1", "--topics", "orders", "--to", str(root), *more]
    return parser.parse_args(given)


def use_cluster(monkeypatch: pytest.MonkeyPatch, session: SparkSession, source: Any) -> None:
    """Makes the job use this session and cluster."""
    monkeypatch.setattr(job.common, "session", lambda *_: session)
    monkeypatch.setattr(job.common, "cluster", lambda *_: source)


def test_periodic_rounds_survive_an_outage_and_archive_its_records_afterwards(
    session: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    slept: list[float],
) -> None:
    lost = [SparkJobError("an executor was lost")] * job.common.TRIES
    source = Failing(session, [row(0), row(1)], failures=[Unreachable("b: no answer"), *lost])
    use_cluster(monkeypatch, session, source)
    with pytest.raises(Ended):
        job.run(options(tmp_path / "archive", "--every", "1h"))
    errors = capsys.readouterr().err
    assert "b: no answer; the next round retries" in errors
    assert "b: no answer; retrying" not in errors  # an immediate retry would fail, too
    assert "an executor was lost; the next round retries" in errors
    assert all(0 < sleep_s <= 3600 for sleep_s in slept)
    reader = ArchiveReader(Archive.open(tmp_path / "archive"))
    assert [one.offset for one in reader.records(ArchiveQuery("orders"))] == [0, 1]


def test_a_single_round_fails_with_the_outage(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Failing(session, [row(0)], failures=[Unreachable("b: no answer")])
    use_cluster(monkeypatch, session, source)
    with pytest.raises(Unreachable, match="no answer"):
        job.run(options(tmp_path / "archive", "--once"))
    assert source.id_requests == 1


def test_an_error_that_the_next_round_cannot_mend_ends_the_job(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    Archive.create(tmp_path / "archive", "cluster")
    use_cluster(monkeypatch, session, Failing(session, [row(0)], cluster="another"))
    with pytest.raises(InvalidArchive, match="archive of cluster cluster, not of another"):
        job.run(options(tmp_path / "archive", "--every", "1h"))
    outdone: list[SparkJobError] = [ConcurrentCommit("another archiver")] * job.common.TRIES
    use_cluster(monkeypatch, session, Failing(session, [row(0)], failures=outdone))
    with pytest.raises(ConcurrentCommit, match="another archiver"):
        job.run(options(tmp_path / "archive", "--every", "1h"))
    monkeypatch.setattr(job, "has_ended", lambda _: True)
    use_cluster(monkeypatch, session, Failing(session, [row(0)], failures=[Unreachable("b: no answer")]))
    with pytest.raises(Unreachable):
        job.run(options(tmp_path / "archive", "--every", "1h"))
    assert slept == []
