"""The audit of a client: a thread of its own logs the counts, and sends them in reports.

    every `log_interval_s`, or when a caller awaits `logged`: changes go into the write-ahead log
    every `report_interval_s`: reports are made, logged and sent; acknowledged ones leave the log

Rules
1. A report is in the log before it is sent. While the log cannot be written nothing is sent, and counts add
   up in memory.
2. The library never fails the client: only `start` raises, before anything is counted. Later problems are in
   `stats`; the logger gets each when it begins and when it ends.
3. Every wait is bounded: the results of `logged` and `close` say whether they succeeded.
4. Only the process that started the audit writes the log, and sends. The child of a fork counts nothing:
   calls return at once, and the logger gets one line.
5. A report that does not pass (`NotPassed`) is sent in halves, and does not delay other reports. A report
   that the receiver refuses for ever is kept in the log's folder.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import random
import re
import socket
import threading
import uuid
import weakref
from collections import deque
from concurrent.futures import Future, InvalidStateError
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from switchyard.audit import outputs, recovery, write_ahead_log
from switchyard.audit.counter import Counting, Tier
from switchyard.audit.daemon_threads import DaemonThreads
from switchyard.audit.errors import AuditError, NotPassed, Refused
from switchyard.audit.logger import log
from switchyard.audit.model.places import is_of_workers
from switchyard.audit.model.reports import INCARNATION, Report
from switchyard.audit.outputs import Output
from switchyard.audit.python310 import TIMEOUTS, timeout
from switchyard.audit.recovery import RecoveredState
from switchyard.audit.worker_folders import FolderPerWorker, LeftBehind
from switchyard.audit.write_ahead_log import EarlierLog, WriteAheadLog

TIERS = (
    "proxy-client",
    "proxy-server",
    "consumer",
)  # tiers of clients with a fixed order; other names are allowed
WINDOW_MS = 600_000
IDLE_MS = 30_000
SEND_TIMEOUT_S = 60.0  # then the output is called again
BACKOFF_S, MOST_BACKOFF_S = 0.5, 30.0
STOP_TIMEOUT_S = 2.0
# Enough to find one report among hundreds. Beyond, nothing passes.
MOST_NOT_PASSED = 20  # in a row
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")
LOG, OUTPUT, REFUSED = "the write-ahead log", "the output", "the receiver of reports"
NOT_PASSED = "the way to the receiver"
FORK = "a forked process"
KEEPING, SENDING = "keeping counts", "sending reports"  # faults of this library


class Fsync(Enum):
    """The data that survives when the machine stops. Logged counts always survive the process.

    NEVER    nothing for sure: counts may be missing. Consumed records that were reported and not committed
             may be counted twice.
    REPORTS  reports, synced before they are sent: nothing is counted twice. Later counts may be missing.
    ALWAYS   all logged counts, at the disk's latency for each write.
    """

    NEVER = "never"
    REPORTS = "reports"
    ALWAYS = "always"


class Stats(NamedTuple):
    """The state of the audit.

    Attributes:
        waiting, acknowledged, refused: Reports. The log's folder keeps refused ones; else they are lost.
        redelivered: Consumed records that were not counted again.
        uncounted: Records that could not be counted.
        wrong: The current problems, each with its reason.
    """

    topics: int
    waiting: int
    acknowledged: int
    refused: int
    redelivered: int
    uncounted: int
    wrong: dict[str, str]


class _NotNow(Exception):
    """The output failed: the reports wait for the next try."""


class Auditing(Counting):
    """The base of `Audit` and `SyncAudit`."""

    # more than eight: the settings of the library, each by keyword
    def __init__(
        self,
        *,
        origin: str,
        tier: str,
        output: Output,
        wal: Path | str | FolderPerWorker | None,
        cluster: str = "",
        window_ms: int = WINDOW_MS,
        idle_ms: int = IDLE_MS,
        log_interval_s: float = 1.0,
        report_interval_s: float = 10.0,
        fsync: Fsync = Fsync.REPORTS,
    ) -> None:
        """Begins to count.

        Args:
            origin: The client's name, the same for all its processes.
            tier: One of `TIERS`, or another name.
            output: Sends the reports.
            wal: A folder for this process only, which its next start finds again. `FolderPerWorker` for
                servers with several processes. None: no log, so a killed process loses what it had not sent.
            cluster: The cluster of the counted topics, as the audit plan names it.
            window_ms: As in the audit plan.
            idle_ms: After this time without a count, no older record is expected.

        Raises:
            AuditError: An argument is invalid.
        """
        for name, value in {"origin": origin, "tier": tier, "cluster": cluster or "-"}.items():
            if not isinstance(value, str) or not _NAME.fullmatch(value):
                raise AuditError(f"{name}={value!r}: use letters, digits, '.', '_' and '-', at most 200")
        if is_of_workers(tier, cluster):
            raise AuditError(f"tier={tier!r}: only workers report this tier; use one of {TIERS}")
        numbers = {
            "window_ms": window_ms, "idle_ms": idle_ms, "log_interval_s": log_interval_s,
            "report_interval_s": report_interval_s,
        }  # fmt: skip
        for name, number in numbers.items():
            if not number > 0:
                raise AuditError(f"{name}={number!r}: must be above 0")
        self._folders = wal if isinstance(wal, FolderPerWorker) else None
        self._wal = None if wal is None or isinstance(wal, FolderPerWorker) else WriteAheadLog(Path(wal))
        self._origin = origin
        super().__init__(Tier(tier, cluster, window_ms, self._new_source(), idle_ms))
        self._output = output
        self._log_interval_s, self._report_interval_s = log_interval_s, report_interval_s
        self._fsync, self._idle_ms = fsync, idle_ms
        self._writing = threading.Lock()
        self._waiters: deque[Future[bool]] = deque()
        self._backlog: dict[str, Report] = {}
        self._arrived: list[str] = []
        self._acknowledged = self._refused = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._closing: asyncio.Event | None = None
        self._close_s = 0.0
        self._has_left = self._ended = self._sent_all = self._is_forked = False
        self._not_passed: set[str] = set()  # ids of reports, which are sent last
        self._not_passed_in_a_row = 0

    @property
    def source(self) -> str:
        """The name of this incarnation in its reports; final once it is started."""
        return self._tier.source

    def _new_source(self) -> str:
        """The part before `INCARNATION` is the same after a restart with the same host name and folder."""
        names = [self._origin, socket.gethostname()]
        if self._folders is not None:
            names.append(self._folders.directory.name)
        if self._wal is not None:
            names.append(self._wal.directory.name)
        return f"{'.'.join(names)}{INCARNATION}{uuid.uuid4().hex[:16]}"

    @property
    def stats(self) -> Stats:
        self._look_for_fork()
        books = list(self._books.values())
        return Stats(
            len(books),
            len(self._backlog) + len(self._pending()),
            self._acknowledged,
            self._refused,
            sum(book.redelivered for book in books),
            sum(book.uncounted for book in books),
            dict(self._problems.now),
        )

    # -- start and end, in any thread -----------------------------------------------------------------

    def _start(self) -> None:
        self._look_for_fork()
        if self._is_forked:
            raise AuditError(
                "start: the parent process has started this audit; start it in the workers only, or "
                "make another Audit"
            )
        if self._thread is not None:
            raise AuditError("start: the audit was started before; make another Audit")
        self._open_log()
        began: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(began)), name="switchyard-audit", daemon=True
        )
        self._thread.start()
        began.result()
        _started.add(self)

    def _open_log(self) -> None:
        """Opens the log, and moves the unsent reports of ended processes into it."""
        folders = self._folders
        if folders is not None:
            wal, left = folders.locked()
            self._wal = wal
            self._begin_as(self._new_source())
        elif self._wal is not None:
            wal = self._wal
            left = wal.lock_and_read()
        else:
            return
        at_ms = int(self._now_s() * 1000)
        others: list[LeftBehind] = []
        try:
            self._take_over(wal, self._left(wal, left, at_ms))
            for others in () if folders is None else folders.left_behind(at_ms, self._idle_ms):
                self._take_over(wal, *(one.state for one in others))
                for one in others:
                    one.forget()
        except BaseException:
            for locked in (wal, *(one.wal for one in others)):
                locked.release()
            raise

    def _take_over(self, wal: WriteAheadLog, *left: RecoveredState) -> None:
        """Puts the states of ended processes into this log. Raises AuditError."""
        for one in left:
            self._backlog |= {report.id: report for report in one.backlog}
            self._resume(one.positions)
        wal.shut()  # then `_keep` begins a file with a snapshot
        if not self._keep(sync=True):
            raise AuditError(
                f"wal={str(wal.directory)!r}: {self._problems.now[LOG]}; make sure that it can be written"
            )

    def _left(self, wal: WriteAheadLog, left: EarlierLog, at_ms: int) -> RecoveredState:
        try:
            everything = recovery.read(left.payloads)
        except recovery.UnreadableFrames as error:
            raise AuditError(
                f"wal={str(wal.directory)!r}: {error}; another version wrote the log: "
                "start that version to send its reports, or name another folder"
            ) from error
        if left.damage:
            log.error("audit: %s is damaged: %s; some of its counts may be missing", LOG, left.damage)
        if wal.refused_bytes:
            path = wal.directory / write_ahead_log.REFUSED
            log.warning("audit: %s has reports that the receiver refused; read it, then move it away", path)
        return recovery.resumed(everything, at_ms, self._idle_ms)

    def _request_close(self, timeout_s: float) -> None:
        self._look_for_fork()
        self._close_s = timeout_s
        if self._loop is not None and self._closing is not None and not self._ended:
            with contextlib.suppress(RuntimeError):  # the loop has just ended
                self._loop.call_soon_threadsafe(self._closing.set)

    def _wait_for_thread(self, timeout_s: float) -> bool:
        """Waits for the thread; returns whether all counts are acknowledged."""
        if self._thread is not None and not self._is_forked:
            self._thread.join(timeout_s + 2 * STOP_TIMEOUT_S)
        return self._sent_all

    def _request_logging(self) -> Future[bool]:
        self._look_for_fork()
        waiter: Future[bool] = Future()
        if self._wal is None or self._loop is None or self._wake is None or self._ended:
            waiter.set_result(False)
            return waiter
        self._waiters.append(waiter)
        try:
            self._loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:  # the loop was just closed
            _answer([waiter], False)
        return waiter

    def _keep(self, *, sync: bool) -> bool:
        """Writes the changes; returns whether the log has them."""
        self._look_for_fork()
        wal = self._wal
        if wal is None or self._is_forked:
            return wal is None
        with self._writing:
            try:
                if not wal.is_open or wal.is_long:
                    self._arrived.clear()
                    everything = self._snapshot(list(self._backlog.values()), has_left=self._has_left)
                    wal.start_file(recovery.encode(everything))
                else:
                    arrived, self._arrived = self._arrived, []
                    change = self._change(arrived)
                    if change is not None:
                        wal.append(recovery.encode(change), sync=sync)
                    elif sync:
                        wal.sync()
            except (OSError, ValueError) as error:
                wal.shut()
                self._problems.wrong(LOG, error)
                return False
            except BaseException:
                wal.shut()  # changes were taken from the books, but not written: the next frame is a snapshot
                raise
            self._problems.right(LOG)
            return True

    # -- the thread ------------------------------------------------------------------------------------

    async def _run(self, began: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_default_executor(DaemonThreads())
        self._wake, self._closing = asyncio.Event(), asyncio.Event()
        began.set_result(None)
        keeping = asyncio.create_task(self._log(self._wake))
        sending = asyncio.create_task(self._send(self._closing))
        await self._closing.wait()
        for task in (keeping, sending):
            task.cancel()
        await asyncio.wait((keeping, sending), timeout=STOP_TIMEOUT_S)
        await self._finish()
        self._ended = True
        _answer(self._take_waiters(), False)

    async def _finish(self) -> None:
        """Sends the last reports. The log keeps those without an acknowledgement."""
        self._reports(int(self._now_s() * 1000), leaves=True)
        waiters = self._take_waiters()
        _answer(waiters, self._keep(sync=self._fsync is not Fsync.NEVER))
        with contextlib.suppress(*TIMEOUTS):
            async with timeout(self._close_s):
                tries = 0
                while not await self._deliver():
                    tries += 1
                    await asyncio.sleep(_backoff_s(tries))
                self._sent_all = not self._refused
        with contextlib.suppress(Exception):
            async with timeout(STOP_TIMEOUT_S):
                await self._output.close()
        self._has_left = True
        if self._wal is not None:
            self._wal.shut()  # then `_keep` begins a new file
            self._keep(sync=False)
            self._wal.release()

    async def _log(self, wake: asyncio.Event) -> None:
        while True:
            with contextlib.suppress(*TIMEOUTS):
                async with timeout(self._log_interval_s):
                    await wake.wait()
            wake.clear()
            waiters, is_kept = self._take_waiters(), False
            try:
                is_kept = self._keep(sync=self._fsync is Fsync.ALWAYS)
                self._problems.right(KEEPING)
            except Exception as error:  # noqa: BLE001 - a fault of this library must not end the audit
                log.debug("audit: %s", KEEPING, exc_info=True)
                self._problems.wrong(KEEPING, repr(error))
            _answer(waiters, is_kept)

    def _take_waiters(self) -> list[Future[bool]]:
        """Takes the current waiters; other threads may add more."""
        return [self._waiters.popleft() for _ in range(len(self._waiters))]

    async def _send(self, closing: asyncio.Event) -> None:
        tries = 0
        while not closing.is_set():
            try:
                self._reports(int(self._now_s() * 1000))
                tries = 0 if await self._deliver() else tries + 1
                self._problems.right(SENDING)
            except Exception as error:  # noqa: BLE001 - as above
                log.debug("audit: %s", SENDING, exc_info=True)
                self._problems.wrong(SENDING, repr(error))
                tries += 1
            await asyncio.sleep(_backoff_s(tries) if tries else self._report_interval_s)

    async def _deliver(self) -> bool:
        """Sends all waiting reports; returns whether none is left."""
        waiting = [*self._backlog.values(), *self._pending()]
        if not self._keep(sync=self._fsync is not Fsync.NEVER):
            return False
        waiting.sort(key=lambda report: report.id in self._not_passed)
        self._not_passed.intersection_update({report.id for report in waiting})
        self._not_passed_in_a_row = 0
        try:
            is_all = all([await self._deliver_batch(batch) for batch in outputs.batches(waiting)])
        except _NotNow as error:
            self._problems.wrong(OUTPUT, error)
            return False
        self._problems.right(OUTPUT)
        if is_all:
            self._problems.right(NOT_PASSED)
        return is_all

    async def _deliver_batch(self, batch: list[Report]) -> bool:
        """Sends a batch; returns whether none of it is left. Raises _NotNow."""
        is_refused = False
        try:
            await self._send_once(batch)
        except (Refused, NotPassed) as error:
            if len(batch) > 1:
                half = len(batch) // 2
                return all([await self._deliver_batch(part) for part in (batch[:half], batch[half:])])
            (report,) = batch
            is_refused = isinstance(error, Refused)
            is_gone = self._keep_refused(report, error) if is_refused else await self._send_halves(report)
            if not is_gone:
                self._not_passed.add(report.id)
                why = f"report {report.id} of topic {report.topic} waits, others are sent: {error}"
                self._problems.wrong(NOT_PASSED, why)
                return False
        self._acknowledged += 0 if is_refused else len(batch)
        for report in batch:
            if self._backlog.pop(report.id, None) is not None:
                self._arrived.append(report.id)
            else:
                self._books[report.topic].acknowledged(report)
        return True

    async def _send_once(self, reports: list[Report]) -> None:
        """Sends reports once. Raises Refused, NotPassed, _NotNow."""
        try:
            async with timeout(SEND_TIMEOUT_S):
                await self._output.send(reports)
        except Refused:
            raise
        except NotPassed as error:
            self._not_passed_in_a_row += 1
            if self._not_passed_in_a_row > MOST_NOT_PASSED:
                raise _NotNow(f"nothing passes: {error}") from error
            raise
        except Exception as error:
            raise _NotNow(f"{type(error).__name__}: {error}") from error  # outputs may raise anything
        self._not_passed_in_a_row = 0

    async def _send_halves(self, report: Report) -> bool:
        """Sends a report that does not pass in halves; returns whether all arrived. Raises _NotNow."""
        for half in outputs.halves(report) or ():
            try:
                await self._send_once([half])
            except NotPassed:
                if not await self._send_halves(half):
                    return False
            except Refused:
                return False
        return len(report.windows) > 1

    def _keep_refused(self, report: Report, error: Exception) -> bool:
        """Keeps a refused report in the log's folder, if there is a log; False: it could not be written."""
        what = "it is lost, because there is no log"
        if self._wal is not None:
            what = f"{self._wal.directory / write_ahead_log.REFUSED} has it"
            try:
                self._wal.keep_refused(outputs.json_lines([report]))
            except OSError as failure:
                self._problems.wrong(
                    REFUSED, f"{failure}: report {report.id} of topic {report.topic} waits: {error}"
                )
                return False
        self._problems.wrong(
            REFUSED, f"the receiver refused report {report.id} of topic {report.topic}; {what}: {error}"
        )
        self._refused += 1
        return True

    def _at_exit(self) -> None:
        """Logs the counts when the process ends without `close`; the next process sends them."""
        self._look_for_fork()
        if not self._ended:
            self._keep(sync=False)

    def _forked(self) -> None:
        self._writing = threading.Lock()
        super()._forked()
        if self._thread is None:  # the child may start it
            self._begin_as(self._new_source(), is_forked=True)
            return
        self._ended, self._sent_all, self._is_forked = True, False, True
        self._waiters = deque()
        if self._wal is not None:
            self._wal.release()  # the parent still holds its lock
        self._problems.wrong(FORK, "it counts nothing; start another Audit in it")


def _answer(waiters: list[Future[bool]], is_kept: bool) -> None:
    for waiter in waiters:
        with contextlib.suppress(InvalidStateError):  # the waiting call was cancelled
            waiter.set_result(is_kept)


def _backoff_s(tries: int) -> float:
    most_s = min(MOST_BACKOFF_S, BACKOFF_S * 2.0 ** min(tries, 10))
    return most_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads clients


_started: weakref.WeakSet[Auditing] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for one in list(_started):
        one._at_exit()
