"""A folder for each worker of a server with several processes. A worker takes the lowest free number.

    /var/lib/billing/audit/worker-0/    a write-ahead log; its process holds the lock
    /var/lib/billing/audit/worker-1/    its process was killed: the next one to start takes it over
    /var/lib/billing/audit/4711/        named by a process id, by an earlier version: taken over, and removed

Rules
1. Numbers are used again, unlike process ids. So a process finds the counts of its predecessor, however many
   there were.
2. A starting process takes over the unsent counts of all unlocked folders, so a smaller number of workers
   loses nothing. The counts are in its own log before they leave the other one.
3. Positions of consumed partitions stay in a numbered folder: its next process may get the same partitions.
4. One audit has one such folder. A process with two audits, a producer's and a consumer's, has two.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from switchyard.audit import recovery, write_ahead_log
from switchyard.audit.errors import AuditError, FolderTaken
from switchyard.audit.logger import log
from switchyard.audit.recovery import RecoveredState, WalSnapshot
from switchyard.audit.write_ahead_log import EarlierLog, WriteAheadLog

PREFIX = "worker-"
MOST_WORKERS = 1_000
MOST_TAKEN_OVER = 500  # folders of process ids at one start; the next start takes more


class LeftBehind(NamedTuple):
    """A folder without a process, locked here, and its unsent state."""

    wal: WriteAheadLog
    state: RecoveredState
    is_numbered: bool

    def forget(self) -> None:
        """Drops the unsent counts, once another log has them. A numbered folder keeps its positions."""
        try:
            if self.is_numbered:
                self.wal.start_file(recovery.encode(WalSnapshot(positions=self.state.positions)))
                self.wal.release()
            else:
                self.wal.remove()
        except OSError as error:  # the next owner sends the same reports, which count once
            self.wal.release()
            log.error("audit: %s: %s; the next start takes it over again", self.wal.directory, error)


class FolderPerWorker:
    """The folder of a server's workers, as `wal` of an audit.

    Each worker must start its audit itself: in a hook after the fork, or because it loads the application.
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)

    def locked(self) -> tuple[WriteAheadLog, EarlierLog]:
        """The lowest free folder.

        Raises:
            AuditError: None is free, or it cannot be used.
        """
        for number in range(MOST_WORKERS):
            wal = WriteAheadLog(self.directory / f"{PREFIX}{number}")
            try:
                return wal, wal.lock_and_read()
            except FolderTaken:
                continue
        raise AuditError(
            f"wal={str(self.directory)!r}: {MOST_WORKERS} processes have a folder there; name another folder"
        )

    def left_behind(self, at_ms: int, idle_ms: int) -> Iterator[list[LeftBehind]]:
        """The folders of ended processes, some at a time. `forget` each once it is in another log.

        Numbered folders come one by one, so that processes that start meanwhile find the others free.
        `at_ms`: now.
        """
        folders = sorted(self.directory.iterdir())
        numbered = [folder for folder in folders if _is_numbered(folder.name)]
        found: list[LeftBehind] = []
        for folder in (self.directory, *folders):
            if len(found) < MOST_TAKEN_OVER and folder not in numbered:
                found += _taken_over(folder, at_ms, idle_ms, is_numbered=False)
        if found:
            yield found
        for folder in numbered:
            if left := _taken_over(folder, at_ms, idle_ms, is_numbered=True):
                yield left


def _taken_over(folder: Path, at_ms: int, idle_ms: int, *, is_numbered: bool) -> list[LeftBehind]:
    wal = WriteAheadLog(folder)
    try:
        if not write_ahead_log.is_log(folder):
            return []
        left = wal.lock_and_read()
        state = recovery.resumed(recovery.read(left.payloads), at_ms, idle_ms)
    except FolderTaken:
        return []
    except (AuditError, OSError, recovery.UnreadableFrames) as error:
        log.error("audit: %s: %s; its counts are not taken over", folder, error)
        wal.release()
        return []
    if left.damage:
        log.error("audit: %s is damaged: %s; some of its counts may be missing", folder, left.damage)
    if state.backlog:
        log.warning("audit: taking over %d reports of an ended process from %s", len(state.backlog), folder)
    elif is_numbered:
        wal.release()
        return []
    return [LeftBehind(wal, state, is_numbered)]


def _is_numbered(name: str) -> bool:
    digits = name.removeprefix(PREFIX)
    return name != digits and digits.isdecimal()
