"""Files of workers, commands and libraries are readable by their owner only, whatever the umask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.dispatch.dlq.export import write_file
from app.offsets.store.records import RegionStore
from app.worker.runtime.data_directory import prepare_datadir
from switchyard.audit.outputs import FileOutput
from switchyard.audit.write_ahead_log import WriteAheadLog


@pytest.fixture(autouse=True)
def open_to_all() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> set[int]:
    """The modes of a folder and, unless only its owner may enter it, of its contents."""
    found = {folder.stat().st_mode & 0o777}
    return found if found == {0o700} else found | {path.stat().st_mode & 0o777 for path in folder.rglob("*")}


def test_an_export_of_letters_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "letters.jsonl"
    path.write_text("an older one that all could read")
    assert write_file(path, "jsonl", [b"{}"]) == 1
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_log_of_an_audit_is_its_owners_alone(tmp_path: Path) -> None:
    for folder in (tmp_path / "made", tmp_path / "given"):
        if folder.name == "given":
            folder.mkdir(mode=0o755)
        wal = WriteAheadLog(folder)
        wal.lock_and_read()
        wal.start_file(b"everything")
        wal.keep_refused(b"a report")
        wal.release()
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert modes(tmp_path / "made") == {0o700}


async def test_the_reports_that_an_audit_writes_to_a_file_are_its_owners_alone(tmp_path: Path) -> None:
    await FileOutput(tmp_path / "reports.jsonl").send([])
    assert (tmp_path / "reports.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("is_there", [False, True])
def test_a_workers_tables_are_its_owners_alone(tmp_path: Path, is_there: bool) -> None:
    folder = tmp_path / "workers" / "w1"
    if is_there:
        folder.mkdir(mode=0o755, parents=True)
    prepare_datadir(folder, "cluster", "app", {})
    assert modes(folder) == {0o700}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_the_store_of_other_regions_is_its_owners_alone(tmp_path: Path) -> None:
    store = RegionStore(tmp_path / "regions" / "store.db")
    store.open()
    store.close()
    assert modes(tmp_path / "regions") == {0o700}
