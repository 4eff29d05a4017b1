"""The audit of a client: a thread of its own keeps what is counted, and sends it.

    every `log_interval_s`, or when somebody waits (`logged`): what has changed goes into the write-ahead log
    every `report_interval_s`: reports are made, kept in the log, sent; acknowledged ones leave it

Rules
1. A report is in the log before it is sent; while the log cannot be written, nothing is sent, and the counts
   add up in memory.
2. Nothing here fails the client: only `start` raises, before anything is counted. What goes wrong later is in
   `stats` and in the log, once when it begins and once when it ends.
3. All times are bounded: `logged` and `close` say what they could not do.
4. Only the process that started it writes the log, and sends. A child of a fork counts nothing: it answers at
   once, and says so once.
5. A report that does not pass (`NotPassed`) is sent as several, by halves, and holds up no other. What the
   receiver refuses for ever is kept in the log's folder.
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
from switchyard.audit.write_ahead_log import Left, WriteAheadLog

TIERS = ("proxy-client", "proxy-server", "consumer")  # those of clients that have their order; others may be
WINDOW_MS = 600_000
IDLE_MS = 30_000
SEND_TIMEOUT_S = 60.0  # an output that has not answered by then is asked again
BACKOFF_S, MOST_BACKOFF_S = 0.5, 30.0
STOP_TIMEOUT_S = 2.0
# One report among hundreds, of hundreds of windows, is found by fewer. Where nothing passes, the rest waits.
MOST_NOT_PASSED = 20  # in a row
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")
LOG, OUTPUT, REFUSED = "the write-ahead log", "the output", "the receiver of reports"
NOT_PASSED = "the way to the receiver"
FORK = "a forked process"
KEEPING, SENDING = "keeping counts", "sending reports"  # faults of ours


class Fsync(Enum):
    """What survives the machine; what was logged survives the process in any case.

    NEVER    nothing for sure: what was counted may be missing. What was consumed, reported and not committed
             may be counted twice.
    REPORTS  reports, before they are sent: nothing is counted twice. What was counted since may be missing.
    ALWAYS   all that is logged, at a disk's latency each time.
    """

    NEVER = "never"
    REPORTS = "reports"
    ALWAYS = "always"


class Stats(NamedTuple):
    """How the audit goes.

    Attributes:
        waiting, acknowledged, refused: reports. Those that the receiver refused are kept in the log's folder.
        redelivered: consumed records that were not counted again.
        uncounted: records that could not be counted.
        wrong: what is wrong now -> why.
    """

    topics: int
    waiting: int
    acknowledged: int
    refused: int
    redelivered: int
    uncounted: int
    wrong: dict[str, str]


class _NotNow(Exception):
    """The output failed: what waits is tried again later."""


class Auditing(Counting):
    """What `Audit` and `SyncAudit` share."""

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
            origin: names the client among all others; the same for all its processes.
            tier: see `TIERS`.
            output: where reports go.
            wal: a folder of this process alone, that the next one finds again; `FolderPerWorker` where a
                server has several; None: nothing is kept, and what a killed process had not sent is missing.
            cluster: whose topics are counted, as the audit plan names it.
            window_ms: as in the audit plan.
            idle_ms: who has counted nothing for so long has nothing older to come.

        Raises:
            AuditError: an argument makes no sense.
        """
        for name, value in {"origin": origin, "tier": tier, "cluster": cluster or "-"}.items():
            if not isinstance(value, str) or not _NAME.fullmatch(value):
                raise AuditError(f"{name}={value!r}: use letters, digits, '.', '_' and '-', at most 200")
        if is_of_workers(tier, cluster):
            raise AuditError(
                f"tier={tier!r}: workers count it, and refuse what others say of it; use one of {TIERS}"
            )
        numbers = {
            "window_ms": window_ms, "idle_ms": idle_ms, "log_interval_s": log_interval_s,
            "report_interval_s": report_interval_s,
        }  # fmt: skip
        for name, number in numbers.items():
            if not number > 0:
                raise AuditError(f"{name}={number!r}: has to be above 0")
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
        self._not_passed: set[str] = set()  # ids of reports, sent behind the others
        self._not_passed_in_a_row = 0

    @property
    def source(self) -> str:
        """Names this incarnation in its reports; final once it is started."""
        return self._tier.source

    def _new_source(self) -> str:
        """Before the sign what stays the same when the process is started again, as far as it is known."""
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
            dict(self._told.now),
        )

    # -- beginning and end, in whatever thread ---------------------------------------------------------

    def _start(self) -> None:
        self._look_for_fork()
        if self._is_forked:
            raise AuditError(
                "start: the process that forked this one has started it; start it in each worker only, or "
                "make another Audit"
            )
        if self._thread is not None:
            raise AuditError("start: it was started before; make another Audit")
        self._open_log()
        began: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(began)), name="switchyard-audit", daemon=True
        )
        self._thread.start()
        began.result()
        _started.add(self)

    def _open_log(self) -> None:
        """Takes over what is left, of other processes too: it is in the log of this one then."""
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
        """What processes have left is in the log of this one then. Raises AuditError."""
        for one in left:
            self._backlog |= {report.id: report for report in one.backlog}
            self._resume(one.positions)
        wal.shut()  # so that a file is begun, which says everything
        if not self._keep(sync=True):
            raise AuditError(f"wal={str(wal.directory)!r}: {self._told.now[LOG]}; see that it can be written")

    def _left(self, wal: WriteAheadLog, left: Left, at_ms: int) -> RecoveredState:
        try:
            everything = recovery.read(left.payloads)
        except recovery.UnreadableFrames as error:
            raise AuditError(
                f"wal={str(wal.directory)!r}: {error}; another version wrote it: "
                "let that one send what is there, or name another folder"
            ) from error
        if left.damage:
            log.error("audit: %s is damaged: %s; what was counted there may be missing", LOG, left.damage)
        if wal.refused_bytes:
            path = wal.directory / write_ahead_log.REFUSED
            log.warning(
                "audit: %s holds reports that the receiver has refused; look at it, move it away", path
            )
        return recovery.resumed(everything, at_ms, self._idle_ms)

    def _close_soon(self, timeout_s: float) -> None:
        self._look_for_fork()
        self._close_s = timeout_s
        if self._loop is not None and self._closing is not None and not self._ended:
            with contextlib.suppress(RuntimeError):  # it ended just now
                self._loop.call_soon_threadsafe(self._closing.set)

    def _joined(self, timeout_s: float) -> bool:
        """Waits for the thread. Whether all that was counted is acknowledged."""
        if self._thread is not None and not self._is_forked:
            self._thread.join(timeout_s + 2 * STOP_TIMEOUT_S)
        return self._sent_all

    def _logged_soon(self) -> Future[bool]:
        self._look_for_fork()
        waiter: Future[bool] = Future()
        if self._wal is None or self._loop is None or self._wake is None or self._ended:
            waiter.set_result(False)
            return waiter
        self._waiters.append(waiter)
        try:
            self._loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:  # the loop was closed just now
            _answer([waiter], False)
        return waiter

    def _keep(self, *, sync: bool) -> bool:
        """Writes what has changed. Whether it is in the log."""
        self._look_for_fork()
        wal = self._wal
        if wal is None or self._is_forked:
            return wal is None
        with self._writing:
            try:
                if not wal.is_open or wal.is_long:
                    self._arrived.clear()
                    everything = self._everything(list(self._backlog.values()), has_left=self._has_left)
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
                self._told.wrong(LOG, error)
                return False
            except BaseException:
                wal.shut()  # what was taken from the books is in no frame: the next one says everything
                raise
            self._told.right(LOG)
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
        _answer(self._taken_waiters(), False)

    async def _finish(self) -> None:
        """The last reports; what is not taken stays in the log."""
        self._reports(int(self._now_s() * 1000), leaves=True)
        waiters = self._taken_waiters()
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
            self._wal.shut()  # so that a new file is begun
            self._keep(sync=False)
            self._wal.release()

    async def _log(self, stirred: asyncio.Event) -> None:
        while True:
            with contextlib.suppress(*TIMEOUTS):
                async with timeout(self._log_interval_s):
                    await stirred.wait()
            stirred.clear()
            waiters, is_kept = self._taken_waiters(), False
            try:
                is_kept = self._keep(sync=self._fsync is Fsync.ALWAYS)
                self._told.right(KEEPING)
            except Exception as error:  # noqa: BLE001 - a fault of ours must not end the audit
                log.debug("audit: %s", KEEPING, exc_info=True)
                self._told.wrong(KEEPING, repr(error))
            _answer(waiters, is_kept)

    def _taken_waiters(self) -> list[Future[bool]]:
        """Those who wait now; other threads add to them meanwhile."""
        return [self._waiters.popleft() for _ in range(len(self._waiters))]

    async def _send(self, closing: asyncio.Event) -> None:
        tries = 0
        while not closing.is_set():
            try:
                self._reports(int(self._now_s() * 1000))
                tries = 0 if await self._deliver() else tries + 1
                self._told.right(SENDING)
            except Exception as error:  # noqa: BLE001 - as above
                log.debug("audit: %s", SENDING, exc_info=True)
                self._told.wrong(SENDING, repr(error))
                tries += 1
            await asyncio.sleep(_backoff_s(tries) if tries else self._report_interval_s)

    async def _deliver(self) -> bool:
        """Sends all that waits. Whether none of it waits any more."""
        waiting = [*self._backlog.values(), *self._pending()]
        if not self._keep(sync=self._fsync is not Fsync.NEVER):
            return False
        waiting.sort(key=lambda report: report.id in self._not_passed)
        self._not_passed.intersection_update({report.id for report in waiting})
        self._not_passed_in_a_row = 0
        try:
            is_all = all([await self._delivered(batch) for batch in outputs.batches(waiting)])
        except _NotNow as error:
            self._told.wrong(OUTPUT, error)
            return False
        self._told.right(OUTPUT)
        if is_all:
            self._told.right(NOT_PASSED)
        return is_all

    async def _delivered(self, batch: list[Report]) -> bool:
        """Whether none of the batch waits any more. Raises _NotNow."""
        is_refused = False
        try:
            await self._sent(batch)
        except (Refused, NotPassed) as error:
            if len(batch) > 1:
                half = len(batch) // 2
                return all([await self._delivered(part) for part in (batch[:half], batch[half:])])
            (report,) = batch
            is_refused = isinstance(error, Refused)
            is_gone = self._gave_up(report, error) if is_refused else await self._sent_by_halves(report)
            if not is_gone:
                self._not_passed.add(report.id)
                why = f"report {report.id} of topic {report.topic} waits, others go on: {error}"
                self._told.wrong(NOT_PASSED, why)
                return False
        self._acknowledged += 0 if is_refused else len(batch)
        for report in batch:
            if self._backlog.pop(report.id, None) is not None:
                self._arrived.append(report.id)
            else:
                self._books[report.topic].acknowledged(report)
        return True

    async def _sent(self, reports: list[Report]) -> None:
        """Raises Refused, NotPassed, _NotNow."""
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
            raise _NotNow(f"{type(error).__name__}: {error}") from error  # outputs raise what they like
        self._not_passed_in_a_row = 0

    async def _sent_by_halves(self, report: Report) -> bool:
        """Sends a report that does not pass as several. Whether all of it arrived. Raises _NotNow."""
        for half in outputs.halves(report) or ():
            try:
                await self._sent([half])
            except NotPassed:
                if not await self._sent_by_halves(half):
                    return False
            except Refused:
                return False
        return len(report.windows) > 1

    def _gave_up(self, report: Report, error: Exception) -> bool:
        """Keeps a report that nobody takes where people can look at it. Whether it is kept."""
        if self._wal is not None:
            try:
                self._wal.keep_refused(outputs.json_lines([report]))
            except OSError as failure:
                self._told.wrong(
                    REFUSED, f"{failure}: report {report.id} of topic {report.topic} waits: {error}"
                )
                return False
        self._told.wrong(REFUSED, f"report {report.id} of topic {report.topic} is given up: {error}")
        self._refused += 1
        return True

    def _at_exit(self) -> None:
        """The process ends without `close`: what was counted is kept for the next one."""
        self._look_for_fork()
        if not self._ended:
            self._keep(sync=False)

    def _forked(self) -> None:
        self._writing = threading.Lock()
        super()._forked()
        if self._thread is None:  # it may be started here
            self._begin_as(self._new_source(), is_forked=True)
            return
        self._ended, self._sent_all, self._is_forked = True, False, True
        self._waiters = deque()
        if self._wal is not None:
            self._wal.release()  # the parent's lock holds
        self._told.wrong(FORK, "it counts nothing; start an Audit of its own in it")


def _answer(waiters: list[Future[bool]], is_kept: bool) -> None:
    for waiter in waiters:
        with contextlib.suppress(InvalidStateError):  # who had waited was cancelled
            waiter.set_result(is_kept)


def _backoff_s(tries: int) -> float:
    most_s = min(MOST_BACKOFF_S, BACKOFF_S * 2.0 ** min(tries, 10))
    return most_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreads clients


_started: weakref.WeakSet[Auditing] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    for one in list(_started):
        one._at_exit()
