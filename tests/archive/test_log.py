"""The archive's log: each change is applied whole, once and in order, with any number of writers."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.archive.errors import ConcurrentCommit, InvalidArchive
from app.archive.layout import (
    ArchiveChange,
    ArchivedPartition,
    ArchivedReach,
    ArchiveFile,
    ArchiveGap,
    FileSpan,
)
from app.archive.log import REMEMBERED_MS, SNAPSHOT_EVERY, SNAPSHOTS_KEPT, Archive, ArchiveState

AT = ArchivedPartition("orders", "id-1", 0)


def file_of(name: str, start: int, end: int, topic_id: str = "id-1") -> ArchiveFile:
    """A file of these offsets."""
    span = FileSpan(0, start, end, end - start, start, end - 1)
    return ArchiveFile(name, "records", "orders", topic_id, "2025-11-22", "12", 100, (span,))


def round_of(start: int, end: int, at_ms: int = 0) -> ArchiveChange:
    """A round that archives these offsets."""
    added = (file_of(f"f{start}", start, end),)
    return ArchiveChange(
        "land", at_ms, added, reach={AT: ArchivedReach(0, end)}, based_on={AT: ArchivedReach(0, start)}
    )


def test_a_committed_change_is_read_back(archive: Archive) -> None:
    gap = ArchiveGap(AT, 5, 8, 77)
    change = ArchiveChange(
        "land", 7, (file_of("a", 0, 5),), reach={AT: ArchivedReach(0, 10)}, based_on={}, gaps=(gap,)
    )
    assert archive.commit(change) == archive.state() == Archive.open(archive.root).state()
    state = archive.state()
    assert (state.number, state.reach, state.gaps) == (1, {AT: ArchivedReach(0, 10)}, (gap,))
    assert state.files == {"a": file_of("a", 0, 5)}


def test_of_two_rounds_over_the_same_offsets_one_counts(archive: Archive) -> None:
    archive.commit(round_of(0, 10))
    with pytest.raises(ConcurrentCommit, match=r"orders \[0\] was archived by another job"):
        archive.commit(round_of(0, 12))
    archive.commit(round_of(10, 20))
    assert sorted(archive.state().files) == ["f0", "f10"]


def test_of_many_writers_at_once_each_offset_counts_once(archive: Archive) -> None:
    def archive_all() -> None:
        mine = Archive.open(archive.root)
        while (end := mine.state().reach.get(AT, ArchivedReach(0, 0)).end) < 100:
            try:
                mine.commit(round_of(end, end + 5))
            except ConcurrentCommit:
                continue

    threads = [threading.Thread(target=archive_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans = sorted(file.spans[0].start for file in archive.state().files.values())
    assert spans == list(range(0, 100, 5))


def test_a_compaction_and_a_round_do_not_hinder_each_other(archive: Archive) -> None:
    archive.commit(round_of(0, 10))
    archive.commit(round_of(10, 20))
    joined = ArchiveChange("compact", 5, (file_of("joined", 0, 20),), removed=("f0", "f10"))
    archive.commit(round_of(20, 30))
    archive.commit(joined)
    assert sorted(archive.state().files) == ["f20", "joined"]
    with pytest.raises(ConcurrentCommit, match="f0 was replaced by another job"):
        archive.commit(joined)


def test_a_writer_that_dies_before_its_change_leaves_nothing_that_counts(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.commit(round_of(0, 10))

    def dies(*_names: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", dies)
        with pytest.raises(KeyboardInterrupt):
            archive.commit(round_of(10, 20))
    assert archive.state().reach == {AT: ArchivedReach(0, 10)}
    archive.commit(round_of(10, 20))
    assert archive.state().reach == {AT: ArchivedReach(0, 20)}


def test_snapshots_change_no_state_and_old_ones_are_deleted(archive: Archive) -> None:
    for number in range(SNAPSHOT_EVERY * 4 + 3):
        archive.commit(round_of(number * 10, number * 10 + 10, at_ms=number))
    snapshots = sorted((archive.root / "log").glob("*.snapshot"))
    assert len(snapshots) == SNAPSHOTS_KEPT
    with_snapshots = archive.state()
    for path in snapshots:
        path.unlink()
    assert archive.state() == with_snapshots
    assert with_snapshots.number == SNAPSHOT_EVERY * 4 + 3


@given(st.permutations(["zz", "aa", "mm"]))
def test_the_newest_lineage_stays_the_newest_in_a_snapshot(ids: list[str]) -> None:
    state = ArchiveState()
    for topic_id in ids:
        at = ArchivedPartition("orders", topic_id, 0)
        state.apply(
            ArchiveChange("land", 0, (file_of(topic_id, 0, 1, topic_id),), reach={at: ArchivedReach(0, 1)})
        )
    assert ArchiveState.from_json(state.as_json()) == state
    assert ArchiveState.from_json(state.as_json()).lineages("orders") == list(ids)


def test_removed_files_are_forgotten_after_a_week(archive: Archive) -> None:
    archive.commit(round_of(0, 10))
    archive.commit(ArchiveChange("compact", 5, (file_of("joined", 0, 10),), removed=("f0",)))
    assert archive.state().removed_ms == {"f0": 5}
    archive.commit(round_of(10, 20, at_ms=6 + REMEMBERED_MS))
    assert archive.state().removed_ms == {}


def test_an_archive_is_of_one_cluster(archive: Archive) -> None:
    assert Archive.create(archive.root, "cluster").cluster_id == "cluster"
    with pytest.raises(InvalidArchive, match="archive of cluster cluster, not of other"):
        Archive.create(archive.root, "other")


def test_a_folder_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(InvalidArchive, match="not empty"):
        Archive.create(tmp_path, "cluster")
    with pytest.raises(InvalidArchive, match=r"archive\.json is missing"):
        Archive.open(tmp_path)


def test_a_later_format_is_refused(archive: Archive) -> None:
    (archive.root / "archive.json").write_text('{"format": 2, "cluster_id": "cluster"}')
    with pytest.raises(InvalidArchive, match="has format 2; this version reads up to 1: upgrade"):
        Archive.open(archive.root)
