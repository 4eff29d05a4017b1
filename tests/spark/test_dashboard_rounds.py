"""Rounds of the dashboard's job survive a concurrent job and a failure that passes."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.archive.errors import ConcurrentCommit, InvalidArchive, SparkJobError
from app.archive.log import Archive
from app.audit.folds.tier import PlanBounds
from spark.archive.compact import stale
from spark.jobs import dashboard as job
from tests.spark.conftest import NOON_MS

PASSING = [ConcurrentCommit("another job was first"), SparkJobError("an executor was lost")]


class Ended(Exception):
    """Ends a job that would run rounds for ever."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with one region and the view over all regions."""
    for name in ("east", job.GLOBAL):
        Archive.create(tmp_path / name, name)
    return tmp_path


def failing(monkeypatch: pytest.MonkeyPatch, *failures: Exception) -> Iterator[Exception]:
    """Makes the view over all regions raise these failures in turn, and then succeed. The failures left."""
    left = iter(failures)

    def bring_up(*_: Any) -> list[str]:
        for failure in left:
            raise failure
        return ["2025-11-22"]

    monkeypatch.setattr(job, "bring_up", bring_up)
    return left


def bring_up(root: Path) -> list[str]:
    return job._bring_up(None, root, PlanBounds())  # type: ignore[arg-type]  # it is only passed on


def test_a_failure_that_passes_is_retried(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, *PASSING)
    assert bring_up(root) == ["2025-11-22"]
    failing(monkeypatch, *PASSING, ConcurrentCommit("again"))
    with pytest.raises(ConcurrentCommit, match="again"):
        bring_up(root)
    left = failing(monkeypatch, InvalidArchive("no store"), InvalidArchive("and again"))
    with pytest.raises(InvalidArchive, match="no store"):
        bring_up(root)
    assert len(list(left)) == 1, "a failure that cannot pass was retried"


def test_periodic_rounds_survive_a_failure_and_a_single_round_raises_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sleeps_s: list[float] = []

    def sleep(duration_s: float) -> None:
        sleeps_s.append(duration_s)
        if len(sleeps_s) == 2:
            raise Ended

    disconnect(monkeypatch)
    monkeypatch.setattr(job, "_catch_up", lambda *_: None)
    monkeypatch.setattr(job.time, "sleep", sleep)
    failing(monkeypatch, *PASSING, ConcurrentCommit("for the third time"))
    with pytest.raises(Ended):
        job.run(options(root, "--every", "1s"))
    errors = capsys.readouterr().err
    assert "for the third time; the next round retries" in errors
    assert "Computed dates: 2025-11-22" in errors
    failing(monkeypatch, *PASSING, ConcurrentCommit("for the third time"))
    with pytest.raises(ConcurrentCommit):
        job.run(options(root, "--once"))


@pytest.mark.parametrize("function", ["_catch_up", "_bring_up"])
def test_no_round_follows_when_the_session_has_ended(
    root: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    def lost(*_: Any) -> None:
        raise SparkJobError("its master is gone")

    def sleep(_: float) -> None:
        raise AssertionError("the job waited for another round")

    disconnect(monkeypatch, ended=True)
    monkeypatch.setattr(job, "_catch_up", lambda *_: None)
    monkeypatch.setattr(job, function, lost)
    monkeypatch.setattr(job.time, "sleep", sleep)
    with pytest.raises(SparkJobError, match="its master is gone"):
        job.run(options(root, "--every", "1s"))


def disconnect(monkeypatch: pytest.MonkeyPatch, *, ended: bool = False) -> None:
    """Replaces session and cluster, so that the job connects to nothing."""
    for name in ("session", "cluster"):
        monkeypatch.setattr(job.common, name, lambda *_: None)
    monkeypatch.setattr(job, "has_ended", lambda _: ended)


def options(root: Path, *more: str) -> Namespace:
    parser = ArgumentParser()
    job.add_arguments(parser)
    return parser.parse_args(["--region", "east=127.0.0.1:1", "--to", str(root), *more])


def test_a_file_that_another_job_deletes_meanwhile_is_no_failure(root: Path) -> None:
    """A dangling link stands for it: it is listed but cannot be opened."""
    for path in (root / "east" / "records" / "a.parquet", root / "east" / "staging" / "b"):
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(root / "nothing")
    assert stale(Archive.open(root / "east"), NOON_MS * 2, 0) == []
