"""Any failure to read an archive is reported as such, so that the log's records are still read."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from app.archive.layout import ArchiveChange, ArchivedPartition, ArchivedReach, ArchiveFile, FileSpan
from app.archive.log import Archive
from app.archive.topic_archive import ArchiveUnreadable, open_archive

AT = ArchivedPartition("orders", "id-1", 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An archive of ten records, whose file is missing."""
    file = ArchiveFile(
        "records/a.parquet",
        "records",
        "orders",
        "id-1",
        "2025-11-22",
        "12",
        9,
        (FileSpan(0, 0, 10, 10, 5, 9),),
    )
    root = tmp_path / "archive"
    Archive.create(root, "cluster").commit(
        ArchiveChange(
            "land", 0, (file,), reach={AT: ArchivedReach(0, 10)}, based_on={AT: ArchivedReach(0, 0)}
        )
    )
    return root


async def test_an_unreadable_archive_log_fails_the_open(root: Path) -> None:
    found = await open_archive(str(root), "cluster", "orders", "id-1")
    assert found.spans == {0: ((0, 10),)}
    for change in (root / "log").iterdir():  # a folder instead of a file, because root ignores permissions
        change.unlink()
        change.mkdir()
    with pytest.raises(ArchiveUnreadable, match=f"^archive {root}: .*Is a directory"):
        await open_archive(str(root), "cluster", "orders", "id-1")


async def test_an_archive_path_below_a_file_fails_the_open(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArchiveUnreadable):
        await open_archive(str(tmp_path / "file" / "archive"), "cluster", "orders", "id-1")


async def test_the_archive_of_another_cluster_fails_the_open(root: Path) -> None:
    with pytest.raises(ArchiveUnreadable) as caught:
        await open_archive(str(root), "another", "orders", "id-1")
    assert str(caught.value) == f"archive {root} is of cluster cluster, not of another: name its own"


async def test_a_missing_pyarrow_fails_the_open_with_the_command_to_install_it(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)  # as if it were not installed
    with pytest.raises(ArchiveUnreadable) as caught:
        await open_archive(str(root), "cluster", "orders", "id-1")
    assert str(caught.value) == (
        f"archive {root}: archives are Parquet files, which pyarrow reads: "
        "pip install 'switchyard-kafka[parquet]'"
    )
    assert (await open_archive(str(root), "cluster", "others", "id-2")).spans == {}, (
        "an archive without the topic needed pyarrow"
    )


async def test_a_missing_file_fails_the_read(root: Path) -> None:
    found = await open_archive(str(root), "cluster", "orders", "id-1")
    with pytest.raises(ArchiveUnreadable, match="the archive cannot be read"):
        async for _ in found.read(0, (0, 10), None):
            pass
