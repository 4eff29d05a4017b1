"""Which dates of the view over all regions are computed again."""

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


def file(path: str, table: str, key: str, digest: str = "") -> ArchiveFile:
    return ArchiveFile(path, table, key, digest, DATE, "none", 1, (FileSpan(-1, 0, 0, 1, -1, -1),))


def test_a_date_is_computed_while_it_is_recent_and_once_more_afterwards(tmp_path: Path) -> None:
    archive = Archive.create(tmp_path, "cluster")
    stores = {"east": (archive, ArchiveState(files={"a": file("a", STATE, WINDOWS)}))}

    def next_digest(digest: str, now_ms: int) -> str:
        """The digest that the date is computed with after `digest`; "": it is not computed again."""
        state = ArchiveState(files={"t": file("t", TRAFFICS, "all", digest)} if digest else {})
        return stale_dates(stores, state, now_ms).get(DATE, "")

    first = next_digest("", NOON_MS)
    assert next_digest(first, NOON_MS + DAY_MS) == first
    last = next_digest(first, NOON_MS + 2 * DAY_MS)
    assert last not in ("", first)
    assert next_digest(last, NOON_MS + 3 * DAY_MS) == ""
    stores["east"][1].files["b"] = file("b", STATE, WINDOWS)
    assert next_digest(last, NOON_MS + 3 * DAY_MS) not in ("", last)


@pytest.mark.parametrize("table", [TRAFFICS, VERDICTS])
def test_dates_of_another_version_are_refused_until_they_are_computed_again(
    tmp_path: Path, table: str
) -> None:
    """Its files may lack columns, which a report would show as unknown or fail on."""
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
def test_dates_of_another_version_that_no_region_can_compute_again_are_dropped(
    tmp_path: Path, table: str
) -> None:
    """It cannot be computed again, and it would make every report fail."""
    stores = {"east": (Archive.create(tmp_path, "cluster"), ArchiveState(files={}))}
    now_ms = NOON_MS + 9 * DAY_MS
    assert list(
        stale_dates(stores, ArchiveState(files={"t": file("t", table, "all", "former")}), now_ms)
    ) == [DATE]
    assert stale_dates(stores, ArchiveState(files={"t": file("t", table, "all", f"{MADE}one")}), now_ms) == {}
