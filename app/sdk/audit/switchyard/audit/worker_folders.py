"""A folder per worker of a server that has several processes: each takes the lowest number that is free.

    /var/lib/billing/audit/worker-0/    a write-ahead log; its lock is held while its process lives
    /var/lib/billing/audit/worker-1/    its process was killed: the next one to start takes it over
    /var/lib/billing/audit/4711/        of a process id, as earlier versions had them: taken over, and removed

Rules
1. Numbers are used again, and process ids are not. So a process finds what the one before has left, however
   many have lived there.
2. Who starts takes over the unsent counts of all folders that no process has: fewer workers than before leave
   nothing behind. These are in its own log before they leave the other one.
3. Positions of consumed partitions stay in a numbered folder: the next process there may be given the same
   partitions again.
4. One audit has one such place. Two audits of a process, a producer's and a consumer's, have two.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from switchyard.audit import recovery, write_ahead_log
from switchyard.audit.errors import AuditError, FolderTaken
from switchyard.audit.logger import log
from switchyard.audit.recovery import Everything, RecoveredState
from switchyard.audit.write_ahead_log import Left, WriteAheadLog

PREFIX = "worker-"
MOST_WORKERS = 1_000
MOST_TAKEN_OVER = 500  # folders of process ids at one start; the next one takes the rest


class LeftBehind(NamedTuple):
    """A folder that no process has, locked, and what is unsent there."""

    wal: WriteAheadLog
    state: RecoveredState
    is_numbered: bool

    def forget(self) -> None:
        """It is in another log now."""
        try:
            if self.is_numbered:
                self.wal.start_file(recovery.encode(Everything(positions=self.state.positions)))
                self.wal.release()
            else:
                self.wal.remove()
        except OSError as error:  # whoever takes it over again sends the same reports, which count once
            self.wal.release()
            log.error("audit: %s: %s; the next start takes it over again", self.wal.directory, error)


class FolderPerWorker:
    """See the module. For `wal` of an audit that each worker starts: in a hook behind the fork, or because
    each worker loads the application."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)

    def locked(self) -> tuple[WriteAheadLog, Left]:
        """The lowest folder that is free.

        Raises:
            AuditError: there is none, or it cannot be used.
        """
        for number in range(MOST_WORKERS):
            wal = WriteAheadLog(self.directory / f"{PREFIX}{number}")
            try:
                return wal, wal.lock_and_read()
            except FolderTaken:
                continue
        raise AuditError(
            f"wal={str(self.directory)!r}: {MOST_WORKERS} processes have a folder there; name another one"
        )

    def left_behind(self, at_ms: int, idle_ms: int) -> Iterator[list[LeftBehind]]:
        """What ended processes have left, some at a time: `forget` them, once they are kept, before the next.

        Numbered folders come one by one: those who start meanwhile find the others free. `at_ms`: now.
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
        log.error("audit: %s: %s; what is there is not taken over", folder, error)
        wal.release()
        return []
    if left.damage:
        log.error("audit: %s is damaged: %s; what was counted there may be missing", folder, left.damage)
    if state.backlog:
        log.warning("audit: takes over %d reports of an ended process from %s", len(state.backlog), folder)
    elif is_numbered:
        wal.release()
        return []
    return [LeftBehind(wal, state, is_numbered)]


def _is_numbered(name: str) -> bool:
    digits = name.removeprefix(PREFIX)
    return name != digits and digits.isdecimal()
