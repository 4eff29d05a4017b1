"""A worker's data directory: used by one process, of this cluster and application, and never ahead of the
changelogs.

Faust raises `ConsistencyError` for a store that is ahead of its changelog (after a kill -9) or comes from
another cluster. Two workers in one directory lock each other out. The tables are copies of their
changelogs, so a store that does not fit is deleted and rebuilt.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import structlog
from rocksdict import Options, Rdict

from app.kernel.free_space import in_mib, shortage, takes_no_more

log = structlog.get_logger(__name__)

OWNER_FILE = "owner.json"
LOCK_FILE = "lock"
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600  # tables hold definitions, addresses and people's keys
NEEDED_BYTES = 32 << 20  # to open the tables: measured, with logs and memtables
OFFSET_KEY = b"__faust\0offset__"

_held: list[IO[str]] = []


class DataDirUnusable(RuntimeError):
    """Another worker runs in this directory, or its disk has no room."""


def worker_directory(root: Path, worker: str) -> Path:
    """The directory of this worker's tables."""
    return root / "workers" / worker


def prepare_datadir(
    directory: Path, cluster_id: str, app_id: str, changelog_ends: Mapping[tuple[str, int], int]
) -> None:
    """Locks the directory for this process, and deletes the stores that do not fit `changelog_ends`, by
    (changelog topic, partition). Raises DataDirUnusable."""
    try:
        _make(directory)
    except OSError as error:
        if not takes_no_more(error):
            raise
        raise DataDirUnusable(_no_room(directory, str(error))) from error
    if why := shortage(directory, NEEDED_BYTES):
        # Before the stores: on a full disk none of them opens, and each would be deleted.
        raise DataDirUnusable(_no_room(directory, why))
    (directory / LOCK_FILE).touch(mode=PRIVATE_FILE)
    lock = (directory / LOCK_FILE).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise DataDirUnusable(
            f"another worker runs in {directory}; set another worker.name or web.port"
        ) from None
    _held.append(lock)  # held until the process ends
    owner = {"cluster_id": cluster_id, "app_id": app_id}
    if _read_owner(directory) != owner:
        for child in directory.iterdir():
            if child.name != LOCK_FILE:
                shutil.rmtree(child) if child.is_dir() else child.unlink()
        (directory / OWNER_FILE).touch(mode=PRIVATE_FILE)
        (directory / OWNER_FILE).write_text(json.dumps(owner))
    for store in directory.glob("**/*.db"):
        if store.is_dir() and not _fits(store, app_id, changelog_ends):
            log.warning("a local table does not fit its changelog; the worker rebuilds it", store=store.name)
            shutil.rmtree(store)


def _no_room(directory: Path, why: str) -> str:
    return (
        f"the disk of {directory}, where this worker has its tables, takes too little: {why}. A worker needs "
        f"{in_mib(NEEDED_BYTES)} to start: free space, or set data_dir to a larger disk"
    )


def _make(directory: Path) -> None:
    directory.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    with contextlib.suppress(PermissionError):  # another user owns it, and set its mode
        directory.chmod(PRIVATE_FOLDER)  # an older version may have made it


def _read_owner(directory: Path) -> object:
    try:
        return json.loads((directory / OWNER_FILE).read_text())
    except (OSError, ValueError):
        return None


def _fits(store: Path, app_id: str, changelog_ends: Mapping[tuple[str, int], int]) -> bool:
    """Whether one partition's store opens and lies within its changelog."""
    table, _, partition = store.stem.rpartition("-")
    if not partition.isdigit():
        return True
    end = changelog_ends.get((f"{app_id}-{table}-changelog", int(partition)))
    if end is None:
        return False
    try:
        database = Rdict(str(store), options=Options(raw_mode=True))
        try:
            stored = database.get(OFFSET_KEY)
        finally:
            database.close()
        return stored is None or int(stored) < end
    except Exception as error:  # rocksdict raises plain Exceptions
        if takes_no_more(error):
            raise DataDirUnusable(_no_room(store.parent, str(error))) from error
        log.warning("this worker cannot open a local table", store=str(store), error=str(error))
        return False
