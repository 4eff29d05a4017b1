"""How the demo has Spark's jobs run: a store and an archive a run, and none is waited for without end."""

from __future__ import annotations

import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.demo import global_report
from app.demo.story import main

YARD: Any = SimpleNamespace(
    clusters=[SimpleNamespace(region=region) for region in ("east", "west")], bootstrap=lambda name: name
)
WRITES = """#!/bin/sh
echo "$@"
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What runs instead of Python: it says with what."""
    found = tmp_path / "program"
    found.write_text(WRITES)
    found.chmod(found.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(global_report.sys, "executable", str(found))
    return found


def test_a_second_run_to_the_same_folder_has_its_own_store_and_archive(tmp_path: Path, program: Path) -> None:
    folder, stores = tmp_path / "reports", set()
    for _ in range(2):
        ended = global_report.make(YARD, folder, "orders", "east-regional", "east-aggregate")
        assert set(ended.values()) == {0}
        words = {name: (folder / f"{name}.log").read_text().split() for name in ended}
        store, archive = (
            Path(words[name][words[name].index("--to") + 1]) for name in ("dashboard", "archive")
        )
        assert store.parent == archive.parent
        assert store.parent.parent == folder
        assert str(store) in words["report"]
        assert str(store) in words["size"]
        assert str(archive) in words["verify-archive"]
        assert str(folder / "report.html") in words["report"]
        stores.add(store)
    assert len(stores) == 2


def test_a_job_that_does_not_end_is_told_and_the_others_go_on(tmp_path: Path, program: Path) -> None:
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    log = tmp_path / "report.log"
    assert global_report._ended(["report"], log, 0.2) == global_report.TOO_LONG
    assert "did not end within 0.2 s" in log.read_text()


def test_no_report_is_made_of_the_other_story(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--story", "failover", "--report", "there"])
    assert caught.value.code == 2
    assert "leave out --story failover, or --report" in capsys.readouterr().err
