"""The audit of a client: a thread of its own keeps what is counted, and sends it.

    every `log_interval_s`, or when somebody waits (`logged`): what has changed goes into the write-ahead log
    every `report_interval_s`: reports are made, kept in the log, sent; acknowledged ones leave it

Rules
1. A report is in the log before it is sent; while the log cannot be written, nothing is sent, and the counts
   add up in memory.
2. Nothing here fails the client: only `start` raises, before anything is counted. What goes wrong later is in
   `stats` and in the log, once when it begins and once when it ends.
3. All times are bounded: `logged` and `close` say what they could not do.
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

from app.audit.counts.reports import INCARNATION, Report
from app.audit.folds.seals import is_of_workers
from app.sdk.audit import outputs, recovery
from app.sdk.audit.counter import Counting, Tier
from app.sdk.audit.errors import AuditError, Refused
from app.sdk.audit.logger import log
from app.sdk.audit.outputs import Output
from app.sdk.audit.write_ahead_log import WriteAheadLog

TIERS = ("proxy-client", "proxy-server", "consumer")  # those of clients that have their order; others may be
WINDOW_MS = 600_000
IDLE_MS = 30_000
SEND_TIMEOUT_S = 60.0  # an output that has not answered by then is asked again
BACKOFF_S, MOST_BACKOFF_S = 0.5, 30.0
STOP_TIMEOUT_S = 2.0
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")
LOG, OUTPUT, REFUSED = "the write-ahead log", "the output", "the receiver of reports"
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
        waiting, acknowledged, refused: reports.
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


class Auditing(Counting):
    """What `Audit` and `SyncAudit` share."""

    def __init__(
        self,
        *,
        origin: str,
        tier: str,
        output: Output,
        wal: Path | str | None,
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
            wal: a folder of this process alone, that the next one finds again; None: nothing is kept, and
                what a killed process had not sent is missing.
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
        # Before the sign what stays the same when the process is started again, as far as it can be known.
        names = [origin, socket.gethostname(), *([] if wal is None else [Path(wal).name])]
        self.source = f"{'.'.join(names)}{INCARNATION}{uuid.uuid4().hex[:16]}"
        super().__init__(Tier(tier, cluster, window_ms, self.source, idle_ms))
        self._output = output
        self._wal = None if wal is None else WriteAheadLog(Path(wal))
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
        self._has_left = self._ended = self._sent_all = False

    @property
    def stats(self) -> Stats:
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
        if self._thread is not None:
            raise AuditError("start: it was started before; make another Audit")
        if self._wal is not None:
            left = self._wal.lock_and_read()
            try:
                self._take_over(left.payloads, left.damage)
            except AuditError:
                self._wal.release()
                raise
            if not self._keep(sync=True):
                self._wal.release()
                raise AuditError(
                    f"wal={str(self._wal.directory)!r}: {self._told.now[LOG]}; see that it can be written"
                )
        began: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._run(began)), name="switchyard-audit", daemon=True
        )
        self._thread.start()
        began.result()
        _started.add(self)

    def _take_over(self, payloads: tuple[bytes, ...], damage: str) -> None:
        try:
            everything = recovery.read(payloads)
        except recovery.UnreadableFrames as error:
            raise AuditError(
                f"wal={str(self._wal and self._wal.directory)!r}: {error}; another version wrote it: "
                "let that one send what is there, or name another folder"
            ) from error
        if damage:
            log.error("audit: %s is damaged: %s; what was counted there may be missing", LOG, damage)
        found = recovery.resumed(everything, int(self._now_s() * 1000), self._idle_ms)
        self._backlog = {report.id: report for report in found.backlog}
        self._resume(found.positions)

    def _close_soon(self, timeout_s: float) -> None:
        self._close_s = timeout_s
        if self._loop is not None and self._closing is not None and not self._ended:
            with contextlib.suppress(RuntimeError):  # it ended just now
                self._loop.call_soon_threadsafe(self._closing.set)

    def _joined(self, timeout_s: float) -> bool:
        """Waits for the thread. Whether all that was counted is acknowledged."""
        if self._thread is not None:
            self._thread.join(timeout_s + 2 * STOP_TIMEOUT_S)
        return self._sent_all

    def _logged_soon(self) -> Future[bool]:
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
        wal = self._wal
        if wal is None:
            return True
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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._close_s):
                tries = 0
                while not await self._deliver():
                    tries += 1
                    await asyncio.sleep(_backoff_s(tries))
                self._sent_all = True
        with contextlib.suppress(Exception):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._output.close()
        self._has_left = True
        if self._wal is not None:
            self._wal.shut()  # so that a new file is begun
            self._keep(sync=False)
            self._wal.release()

    async def _log(self, stirred: asyncio.Event) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._log_interval_s):
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
        """Sends all that waits. Whether all of it is acknowledged."""
        waiting = [*self._backlog.values(), *self._pending()]
        if not self._keep(sync=self._fsync is not Fsync.NEVER):
            return False
        for batch in outputs.batches(waiting):
            if not await self._delivered(batch):
                return False
        return True

    async def _delivered(self, batch: list[Report]) -> bool:
        try:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._output.send(batch)
        except Refused as error:
            if len(batch) > 1:
                return all([await self._delivered([report]) for report in batch])
            self._told.wrong(REFUSED, f"report {batch[0].id} of topic {batch[0].topic} is given up: {error}")
            self._refused += 1
        except Exception as error:  # noqa: BLE001 - outputs raise what they like; it is tried again
            self._told.wrong(OUTPUT, f"{type(error).__name__}: {error}")
            return False
        else:
            self._acknowledged += len(batch)
            self._told.right(OUTPUT)
            self._told.right(REFUSED)
        for report in batch:
            if self._backlog.pop(report.id, None) is not None:
                self._arrived.append(report.id)
            else:
                self._books[report.topic].acknowledged(report)
        return True

    def _at_exit(self) -> None:
        """The process ends without `close`: what was counted is kept for the next one."""
        if not self._ended:
            self._keep(sync=False)

    def _forked(self) -> None:
        super()._forked()
        if self._thread is not None:
            self._ended, self._sent_all = True, False
            self._waiters, self._writing = deque(), threading.Lock()
            if self._wal is not None:
                self._wal.release()  # the parent's lock holds
            self._told.wrong("a forked process", "it counts nothing; start an Audit of its own in it")


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
