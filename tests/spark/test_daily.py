"""Which dates of the view over all regions are made anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.archive.errors import InvalidArchive
from app.archive.layout import ArchiveFile, FileSpan
from app.archive.log import Archive, ArchiveState
from spark.dashboard.daily import DAY_MS, MADE, check_made, stale_dates
from spark.dashboard.decode import WINDOWS
from spark.dashboard.store import STATE, TRAFFICS, VERDICTS
from tests.spark.conftest import NOON_MS

DATE = "2025-11-22"  # of NOON_MS


def file(path: str, table: str, of: str, digest: str = "") -> ArchiveFile:
    return ArchiveFile(path, table, of, digest, DATE, "none", 1, (FileSpan(-1, 0, 0, 1, -1, -1),))


def test_a_date_is_made_as_long_as_it_is_recent_and_once_more_afterwards(tmp_path: Path) -> None:
    archive = Archive.create(tmp_path, "cluster")
    stores = {"east": (archive, ArchiveState(files={"a": file("a", STATE, WINDOWS)}))}

    def made(digest: str, now_ms: int) -> str:
        """What it is made as, where it was made as `digest`; "": it is not made."""
        state = ArchiveState(files={"t": file("t", TRAFFICS, "all", digest)} if digest else {})
        return stale_dates(stores, state, now_ms).get(DATE, "")

    first = made("", NOON_MS)
    assert made(first, NOON_MS + DAY_MS) == first
    last = made(first, NOON_MS + 2 * DAY_MS)
    assert last not in ("", first)
    assert made(last, NOON_MS + 3 * DAY_MS) == ""
    stores["east"][1].files["b"] = file("b", STATE, WINDOWS)
    assert made(last, NOON_MS + 3 * DAY_MS) not in ("", last)


@pytest.mark.parametrize("table", [TRAFFICS, VERDICTS])
def test_what_another_version_has_made_is_told_and_made_anew(tmp_path: Path, table: str) -> None:
    """Its files may lack columns, of which a report would say that they are unknown, or fail."""
    stores = {
        "east": (Archive.create(tmp_path, "cluster"), ArchiveState(files={"a": file("a", STATE, WINDOWS)}))
    }
    now = stale_dates(stores, ArchiveState(files={}), NOON_MS + 9 * DAY_MS)[DATE]
    check_made(tmp_path, ArchiveState(files={"t": file("t", table, "all", now)}))
    former = ArchiveState(files={"t": file("t", table, "all", now.removeprefix(MADE))})
    with pytest.raises(
        InvalidArchive, match=f"first {DATE}, were computed by another version: run .*dashboard --once"
    ):
        check_made(tmp_path, former)
    assert stale_dates(stores, former, NOON_MS + 9 * DAY_MS) == {DATE: now}


@pytest.mark.parametrize("table", [TRAFFICS, VERDICTS])
def test_what_another_version_has_made_of_a_region_that_is_gone_goes(tmp_path: Path, table: str) -> None:
    """Nobody can make it anew, and it would keep every report from being made."""
    stores = {"east": (Archive.create(tmp_path, "cluster"), ArchiveState(files={}))}
    now_ms = NOON_MS + 9 * DAY_MS
    assert list(
        stale_dates(stores, ArchiveState(files={"t": file("t", table, "all", "former")}), now_ms)
    ) == [DATE]
    assert stale_dates(stores, ArchiveState(files={"t": file("t", table, "all", f"{MADE}one")}), now_ms) == {}
