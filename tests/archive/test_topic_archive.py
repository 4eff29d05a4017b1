"""Archives that cannot be read are told as that, whatever fails, so that the log's records are still read."""

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
    """An archive of ten records, whose file is not there."""
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


async def test_an_archive_whose_log_cannot_be_read_is_told(root: Path) -> None:
    found = await open_archive(str(root), "cluster", "orders", "id-1")
    assert found.spans == {0: ((0, 10),)}
    for change in (root / "log").iterdir():  # no file any more, for root reads what nobody else may
        change.unlink()
        change.mkdir()
    with pytest.raises(ArchiveUnreadable, match=f"^archive {root}: .*Is a directory"):
        await open_archive(str(root), "cluster", "orders", "id-1")


async def test_a_folder_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArchiveUnreadable):
        await open_archive(str(tmp_path / "file" / "archive"), "cluster", "orders", "id-1")


async def test_anothers_archive_is_told_once(root: Path) -> None:
    with pytest.raises(ArchiveUnreadable) as caught:
        await open_archive(str(root), "another", "orders", "id-1")
    assert str(caught.value) == f"archive {root} is of cluster cluster, not of another: name its own"


async def test_what_to_install_is_said_before_the_first_record(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)  # as where it is not installed
    with pytest.raises(ArchiveUnreadable) as caught:
        await open_archive(str(root), "cluster", "orders", "id-1")
    assert str(caught.value) == (
        f"archive {root}: archives are Parquet files, which pyarrow reads: "
        "pip install 'switchyard-kafka[parquet]'"
    )
    assert (await open_archive(str(root), "cluster", "others", "id-2")).spans == {}, "nothing is to be read"


async def test_a_file_that_is_gone_is_told(root: Path) -> None:
    found = await open_archive(str(root), "cluster", "orders", "id-1")
    with pytest.raises(ArchiveUnreadable, match="the archive cannot be read"):
        async for _ in found.read(0, (0, 10), None):
            pass
