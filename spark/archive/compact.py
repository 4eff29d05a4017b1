"""Merges an archive's small files, and finds the files that no longer count.

Rules
1. Files are merged within a lineage, table, date and hour. The number of records must equal the log's, and
   the digests must match, before the change is committed.
2. Replaced files stay on the disk for their readers. `stale` finds files that were replaced, or never
   committed, longer ago than a reader takes.
3. Files with columns of a later version are refused, because a merge would lose the columns.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from pyspark.sql import SparkSession

from app.archive.errors import ConcurrentCommit, InvalidArchive, SparkJobError
from app.archive.layout import QUARANTINE, RECORDS, VISIBLE, ArchiveChange, ArchiveFile
from app.archive.log import Archive, ArchiveState, sync
from spark.archive.frames import PLACE, later_columns, ordered, read_files, replaced
from spark.archive.landing import STAGING, land

TARGET_BYTES = 128 * 1024 * 1024
SMALL_SHARE = 0.5  # of the target, so that two small files fit into one
ROUND_BYTES = 1024 * 1024 * 1024  # of one change, which a kill repeats


@dataclass(frozen=True, slots=True)
class CompactionGroup:
    """Small files of one folder and lineage, and the number of files to merge them into."""

    files: tuple[ArchiveFile, ...]
    into: int

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """The records that a change merged, and the files before and after."""

    records: int
    before: int
    after: int


def groups(state: ArchiveState, target_bytes: int = TARGET_BYTES) -> list[CompactionGroup]:
    """The folders where merging leaves fewer files, those with most small files first."""
    folders: dict[tuple[str, ...], list[ArchiveFile]] = defaultdict(list)
    for file in state.files.values():
        if file.size_bytes < target_bytes * SMALL_SHARE:
            folders[file.topic, file.topic_id, file.table, file.date, file.hour].append(file)
    found = [
        CompactionGroup(tuple(files), ceil(sum(file.size_bytes for file in files) / target_bytes))
        for files in folders.values()
    ]
    return sorted((group for group in found if len(group.files) > group.into), key=lambda g: -len(g.files))


def rounds(found: list[CompactionGroup], limit_bytes: int = ROUND_BYTES) -> Iterator[list[CompactionGroup]]:
    """Splits the groups into changes. Groups that become one file each share a change, up to `limit_bytes`
    and one lineage a topic; others are alone."""
    together: list[CompactionGroup] = []
    ids: dict[str, str] = {}
    for group in found:
        if group.into > 1:
            yield [group]
            continue
        first = group.files[0]
        full = sum(one.size_bytes for one in together) + group.size_bytes > limit_bytes
        if together and (full or ids.get(first.topic, first.topic_id) != first.topic_id):
            yield together
            together, ids = [], {}
        together.append(group)
        ids[first.topic] = first.topic_id
    if together:
        yield together


def join(
    spark: SparkSession, archive: Archive, together: list[CompactionGroup], now_ms: int
) -> CompactionResult:
    """Merges these groups in one change.

    Raises:
        ConcurrentCommit: Another compaction committed first; nothing changed.
        SparkJobError: Records are missing, or differ from those that were written.
        InvalidArchive: Files have columns of a later version.
    """
    files = [file for group in together for file in group.files]
    paths = [str(archive.root / file.path) for file in files]
    if unknown := later_columns(spark, paths):
        raise InvalidArchive(
            f"{archive.root}: a later version wrote files with the columns {', '.join(unknown)}, "
            "which this version would lose: compact with the later one"
        )
    frame = replaced(read_files(spark, paths))
    if len(together) == 1:
        frame = frame.repartitionByRange(together[0].into, "partition", "offset")
    else:
        frame = frame.repartition(len(together), *PLACE)  # one task writes a folder's records
    landed = land(ordered(frame), archive.root, {file.topic: file.topic_id for file in files}, compare=True)
    if landed.rows != (held := sum(file.rows for file in files)):
        raise SparkJobError(
            f"{archive.root}: read {landed.rows:,} records from files that hold {held:,}; nothing was "
            "changed, run it again"
        )
    archive.commit(
        ArchiveChange("compact", now_ms, added=landed.files, removed=tuple(file.path for file in files))
    )
    return CompactionResult(landed.rows, len(files), len(landed.files))


def unhide(archive: Archive, now_ms: int) -> int:
    """Renames the files that Spark ignores; returns their number. The former names stay on the disk like
    replaced files.

    Raises:
        ConcurrentCommit: Another job renamed them first; nothing changed.
    """
    files = [file for file in archive.state().files.values() if file.hidden]
    added = []
    for file in files:
        path = archive.root / file.path
        seen = path.with_name(f"{VISIBLE}{path.name}")
        os.utime(path)  # keeps `stale` from the link before it is committed
        with contextlib.suppress(FileExistsError):  # left by a job that was killed here
            os.link(path, seen)
        added.append(replace(file, path=seen.relative_to(archive.root).as_posix()))
    for folder in {(archive.root / file.path).parent for file in added}:
        sync(folder)
    if files:
        removed = tuple(file.path for file in files)
        archive.commit(ArchiveChange("compact", now_ms, added=tuple(added), removed=removed))
    return len(files)


def compact(
    spark: SparkSession, archive: Archive, now_ms: int, target_bytes: int = TARGET_BYTES
) -> Iterator[CompactionResult]:
    """Merges small files, one change at a time. Skips a change that another job made meanwhile."""
    with contextlib.suppress(ConcurrentCommit):
        unhide(archive, now_ms)
    for together in rounds(groups(archive.state(), target_bytes)):
        try:
            yield join(spark, archive, together, now_ms)
        except ConcurrentCommit:
            continue


def stale(
    archive: Archive, now_ms: int, older_than_ms: int, tables: Iterable[str] = (RECORDS, QUARANTINE)
) -> list[Path]:
    """Files of these tables, and staging folders, that have not counted for at least this time."""
    state = archive.state()
    found = []
    for table in tables:
        for path in (archive.root / table).rglob("*.parquet"):
            name = path.relative_to(archive.root).as_posix()
            if name in state.files:
                continue
            since_ms = state.removed_ms[name] if name in state.removed_ms else _changed_ms(path)
            if since_ms is not None and since_ms <= now_ms - older_than_ms:
                found.append(path)
    for path in (archive.root / STAGING).glob("*"):
        changed_ms = _changed_ms(path)
        if changed_ms is not None and changed_ms <= now_ms - older_than_ms:
            found.append(path)
    return found


def _changed_ms(path: Path) -> int | None:
    """None: another job has moved or deleted the file."""
    try:
        return int(path.stat().st_mtime * 1000)
    except FileNotFoundError:
        return None
