"""The archive's log decides which files count, and how far each partition is archived.

Rules
1. Change n is the file `log/<n>.json`. A job writes it under another name, syncs it to the disk and links
   it to its name. The link fails where the name exists, so only one of two writers makes change n.
2. The second writer reads the first one's change. If its own change is still valid
   (`ArchiveState.refuse`), it makes the next change; otherwise it gives up.
3. Every `SNAPSHOT_EVERY` changes the log gets a snapshot of its state, so that a reader opens few files. A
   snapshot is derived from the changes and may be missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from app.archive.errors import ConcurrentCommit, InvalidArchive
from app.archive.layout import (
    ArchiveChange,
    ArchivedPartition,
    ArchivedReach,
    ArchiveFile,
    ArchiveGap,
    gaps_as_json,
    gaps_from_json,
    reach_as_json,
    reach_from_json,
)
from app.kernel.json_types import JsonMapping, JsonObject

FORMAT = 1
SNAPSHOT_EVERY = 32
SNAPSHOTS_KEPT = 2
REMEMBERED_MS = 7 * 86_400_000  # how long a file's removal is known; `spark compact` deletes it sooner
ATTEMPTS = 100  # changes by other jobs that may come first


@dataclass(slots=True)
class ArchiveState:
    """The log up to change `number`: current files by path, reach by partition, and when files were
    removed."""

    number: int = 0
    files: dict[str, ArchiveFile] = field(default_factory=dict)
    reach: dict[ArchivedPartition, ArchivedReach] = field(default_factory=dict)
    gaps: tuple[ArchiveGap, ...] = ()
    removed_ms: dict[str, int] = field(default_factory=dict)

    def refuse(self, change: ArchiveChange) -> str:
        """Why the change is not valid here; "" if it is."""
        for partition, reach in (change.based_on or {}).items():
            if self.reach.get(partition, reach) != reach:
                return f"{partition.topic} [{partition.number}] was archived by another job meanwhile"
        for path in change.removed:
            if path not in self.files:
                return f"{path} was replaced by another job meanwhile"
        return ""

    def apply(self, change: ArchiveChange) -> None:
        """Applies the change."""
        for path in change.removed:
            del self.files[path]
            self.removed_ms[path] = change.at_ms
        for path in [path for path, at in self.removed_ms.items() if at < change.at_ms - REMEMBERED_MS]:
            del self.removed_ms[path]
        for file in change.added:
            self.files[file.path] = file
        self.reach |= change.reach or {}
        self.gaps += change.gaps
        self.number += 1

    def topics(self) -> list[str]:
        """All archived topics."""
        return sorted({partition.topic for partition in self.reach})

    def lineages(self, topic: str) -> list[str]:
        """The topic's ids, in the order in which they were first archived."""
        return list(dict.fromkeys(partition.topic_id for partition in self.reach if partition.topic == topic))

    def as_json(self) -> JsonObject:
        """The JSON of a snapshot."""
        return {
            "format": FORMAT,
            "number": self.number,
            "files": [file.as_json() for file in self.files.values()],
            "lineages": {topic: self.lineages(topic) for topic in self.topics()},
            "reach": reach_as_json(self.reach),
            "gaps": gaps_as_json(self.gaps),
            "removed_ms": self.removed_ms,
        }

    @classmethod
    def from_json(cls, found: JsonMapping) -> ArchiveState:
        """From a snapshot."""
        reach = reach_from_json(found["reach"])
        oldest_first = {
            (topic, name): at for topic, names in found["lineages"].items() for at, name in enumerate(names)
        }
        in_order = sorted(reach, key=lambda p: (p.topic, oldest_first[p.topic, p.topic_id], p.number))
        files = [ArchiveFile.from_json(file) for file in found["files"]]
        return cls(
            number=found["number"],
            files={file.path: file for file in files},
            reach={partition: reach[partition] for partition in in_order},
            gaps=gaps_from_json(found["gaps"]),
            removed_ms=dict(found["removed_ms"]),
        )


class Archive:
    """An archive on disk: `Archive.create(root, cluster_id)` or `Archive.open(root)`."""

    __slots__ = ("_log", "cluster_id", "root")

    def __init__(self, root: Path, cluster_id: str) -> None:
        self.root = root
        self.cluster_id = cluster_id
        self._log = root / "log"

    @classmethod
    def create(cls, root: Path, cluster_id: str) -> Archive:
        """The archive of this cluster; creates it if there is none.

        Raises:
            InvalidArchive: The folder has another cluster's archive, or other files and no log.
        """
        card = root / "archive.json"
        if not card.exists():
            if root.exists() and any(root.iterdir()) and not (root / "log").is_dir():
                raise InvalidArchive(f"{root} is not empty and is no archive: give a folder of its own")
            (root / "log").mkdir(parents=True, exist_ok=True)
            _publish(card, {"format": FORMAT, "cluster_id": cluster_id})
        archive = cls.open(root)
        if archive.cluster_id != cluster_id:
            raise InvalidArchive(
                f"{root} is the archive of cluster {archive.cluster_id}, not of {cluster_id}"
            )
        return archive

    @classmethod
    def open(cls, root: Path) -> Archive:
        """The archive in this folder.

        Raises:
            InvalidArchive: There is none, or a later version wrote it.
        """
        try:
            found = json.loads((root / "archive.json").read_text())
        except (FileNotFoundError, NotADirectoryError):
            raise InvalidArchive(f"{root} is no archive: archive.json is missing") from None
        if found["format"] > FORMAT:
            raise InvalidArchive(
                f"{root} has format {found['format']}; this version reads up to {FORMAT}: upgrade"
            )
        return cls(root, found["cluster_id"])

    def state(self) -> ArchiveState:
        """The state at the log's end."""
        for path in sorted(self._log.glob("*.snapshot"), reverse=True):
            with contextlib.suppress(FileNotFoundError):  # a newer one replaced it just now
                return self.newer(ArchiveState.from_json(json.loads(path.read_text())))
        return self.newer(ArchiveState())

    def newer(self, state: ArchiveState) -> ArchiveState:
        """Brings `state` to the log's end, in place."""
        while (path := self._path(state.number + 1)).exists():
            state.apply(ArchiveChange.from_json(json.loads(path.read_text())))
        return state

    def commit(self, change: ArchiveChange) -> ArchiveState:
        """Makes the change; returns the state with it.

        Raises:
            ConcurrentCommit: Another job changed a part that this change needs; nothing was changed.
        """
        state = self.state()
        for _ in range(ATTEMPTS):
            if reason := state.refuse(change):
                raise ConcurrentCommit(f"{self.root}: {reason}; nothing was changed, run it again")
            if _publish(self._path(state.number + 1), change.as_json()):
                state.apply(change)
                if state.number % SNAPSHOT_EVERY == 0:
                    _publish(self._path(state.number, "snapshot"), state.as_json())
                    for old in sorted(self._log.glob("*.snapshot"))[:-SNAPSHOTS_KEPT]:
                        old.unlink(missing_ok=True)
                return state
            state = self.newer(state)
        raise ConcurrentCommit(f"{self.root}: {ATTEMPTS} changes by other jobs came first; run it again")

    def _path(self, number: int, ending: str = "json") -> Path:
        return self._log / f"{number:020}.{ending}"


def _publish(path: Path, content: JsonObject) -> bool:
    """Writes a whole file to the disk; False if its name is taken."""
    handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        os.link(name, path)
    except FileExistsError:
        return False
    finally:
        Path(name).unlink()
    sync(path.parent)
    return True


def sync(path: Path) -> None:
    """Syncs a file, or a folder's names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
