"""How the demo runs Spark's jobs: each run has a store and an archive of its own.

Each step must find the expected records, and must end in time.
"""

from __future__ import annotations

import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from app.dev.demo import spark_reports
from app.dev.demo.cli import demo
from app.dev.demo.spark_reports import Story, ended, middle, steps

YARD: Any = SimpleNamespace(
    clusters=[SimpleNamespace(region=region) for region in ("east", "west")], bootstrap=lambda name: name
)
STORY = Story("orders", "east-regional", "east-aggregate", "http://worker", 30, 1_000, 2_000, 7)
WHOLE = {"verify-copy", "verify-archive", "archive", "report"}  # these steps must find all records


def answer_with(program: Path, words: str, code: int = 0) -> None:
    """Makes the program that replaces Python print these words and end with `code`."""
    program.write_text(f"#!/bin/sh\necho words of \"$3\" >&2\necho '{words}'\nexit {code}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of the program that replaces Python."""
    found = tmp_path / "program"
    monkeypatch.setattr(spark_reports.sys, "executable", str(found))
    return found


def test_a_second_run_to_the_same_folder_has_its_own_store_and_archive(tmp_path: Path) -> None:
    folder, stores = tmp_path / "reports", set()
    for _ in range(2):
        run = spark_reports.new_run(folder)
        given = {step.name: step.arguments for step in steps(YARD, folder, run, STORY)}
        store, archive = (
            Path(given[name][given[name].index("--to") + 1]) for name in ("dashboard", "archive")
        )
        assert {store.parent, archive.parent} == {run}
        assert archive == spark_reports.archive_of(run), "the workers use another archive"
        assert run.parent == folder
        for name in ("report", "size"):
            assert str(store) in given[name]
        for name in ("verify-archive", "restore"):
            assert str(archive) in given[name]
        assert str(folder / "report.html") in given["report"]
        assert all({"1000", "2000"} <= {*given[name]} for name in ("restore", "verify-restored", "records"))
        stores.add(store)
    assert len(stores) == 2


def test_a_step_is_sound_only_when_it_found_all_that_it_must(tmp_path: Path, program: Path) -> None:
    good = '{"records": %d, "missing": 0, "extra": 0, "quarantined": 0, "away": {}, "findings": {}}'
    for step in steps(YARD, tmp_path, tmp_path / "run", STORY):
        count = 30 if step.name in WHOLE else 7
        answer_with(program, "\n".join(["{}"] * 7) if step.name == "records" else good % count)
        assert ended(step, tmp_path).sound, step.name
        answer_with(program, good % count, code=8)
        assert ended(step, tmp_path).says == "ended with 8"
        if step.name in ("dashboard", "size"):
            continue
        answer_with(program, "{}" if step.name == "records" else good % (count - 1))
        short = ended(step, tmp_path)
        assert not short.sound
        assert f"must be {count}" in short.says
        assert not ended(step, tmp_path).sound
    answer_with(program, good.replace('"findings": {}', '"findings": {"doubled": 1}') % 30)
    copy = next(step for step in steps(YARD, tmp_path, tmp_path / "run", STORY) if step.name == "verify-copy")
    assert "findings is {'doubled': 1}" in ended(copy, tmp_path).says
    assert "words of verify" in (tmp_path / "verify-copy.log").read_text()


def test_a_step_that_does_not_end_is_reported(tmp_path: Path, program: Path) -> None:
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    step = steps(YARD, tmp_path, tmp_path / "run", STORY)[0]
    late = ended(step, tmp_path, 0.2)
    assert (late.code, late.sound) == (spark_reports.TOO_LONG, False)
    assert "did not end within 0.2 s" in (tmp_path / "dashboard.log").read_text()


@pytest.mark.parametrize("times_ms", [[5] * 75, list(range(75)), [*range(40, 0, -1), *[41] * 60_000]])
def test_the_requested_range_has_the_reported_number_of_records(times_ms: list[int]) -> None:
    from_ms, to_ms, count = middle(times_ms)
    assert from_ms < to_ms
    assert count == sum(from_ms <= at_ms < to_ms for at_ms in times_ms) > 0


def test_a_report_of_the_failover_story_is_refused() -> None:
    found = CliRunner().invoke(demo, ["--story", "failover", "--report", "there"])
    assert found.exit_code == 2
    assert "leave out --story failover, or --report" in found.stderr
