"""Counts a client's records of one scope, and makes numbered reports of them.

    add(records) -> Tally --reports--> numbered, pending --acknowledged--> forgotten
                      ^ state() -> write-ahead log -> restored(): the same incarnation continues

Rules
1. A numbered report never changes. It is sent until it is acknowledged, and counts once.
2. `state` is the whole state. If a client keeps it before it sends a report, and continues with it, each
   record up to there is counted once. A client without a state begins as another incarnation
   (`reports.INCARNATION`). Then the unreported counts of the last one are reported as missing audit, not as
   loss.
3. A report's watermark excludes times that an earlier report, which has not arrived, still covers.
4. A tally has at most `MOST_WINDOWS` windows, plus those of one call. Further windows make it a report at
   once, so a client that replays a topic counts every record in its window. If `MOST_EARLY` reports wait,
   these records are counted as records without a timestamp, and `untimed` counts them.
"""

from __future__ import annotations

import msgspec
import numpy as np

from switchyard.audit.model.reports import Report, Scope, client_report, shard_of_client
from switchyard.audit.model.tally import (
    SKEW_MS,
    UNTIMED,
    Numbers,
    RecordArrays,
    Tally,
    believed,
    window_of,
)
from switchyard.audit.model.totals import NEVER_MS, NO_TOTALS, Totals

MOST_PENDING = 1_000  # reports; beyond, new counts add up in one tally
MOST_WINDOWS = 256
MOST_EARLY = 16  # reports by rule 4: some MB


class ClientState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a client's count of one scope in a write-ahead log.

    `shard` is the shard of its reports. Earlier versions had no such field and used shard 0. There their
    reports stay, because the collector may know the client there.
    """

    scope: Scope
    source: str
    sequence: int = 0
    pending: tuple[Report, ...] = ()
    windows: dict[int, Totals] = {}
    max_timestamp_ms: int = NEVER_MS
    arrived_ms: int = NEVER_MS
    shard: int = 0


class ClientAudit:
    """The count of one scope. It reads no clock: callers pass times.

    Args:
        idle_ms: After this time without a record that shows progress, no older record is expected. A record
            shows no progress if it has no timestamp, or one ahead of its clock.

    Attributes:
        untimed: Records with a timestamp that were counted as records without one (rule 4).
    """

    __slots__ = ("_arrived_ms", "_before", "_counted_ms", "_idle_ms", "_late_ms", "_max_timestamp_ms",
                 "_pending", "_scope", "_sequence", "_shard", "_source", "_tally", "untimed")  # fmt: skip

    def __init__(self, scope: Scope, source: str, idle_ms: int) -> None:
        self._scope = scope
        self._source = source
        self._idle_ms = idle_ms
        self._shard = shard_of_client(source)
        self._sequence = 0
        self._pending: list[Report] = []
        self._tally = Tally(scope.width_ms)
        self._before: dict[int, Totals] = {}  # the counts of this incarnation before it was restored
        self._max_timestamp_ms = self._arrived_ms = self._counted_ms = NEVER_MS
        self._late_ms = 0
        self.untimed = 0

    @classmethod
    def restored(cls, state: ClientState, idle_ms: int) -> ClientAudit:
        """Continues the incarnation that kept the state."""
        found = cls(state.scope, state.source, idle_ms)
        found._sequence, found._pending, found._shard = state.sequence, list(state.pending), state.shard
        found._before = dict(state.windows)
        found._max_timestamp_ms, found._arrived_ms = state.max_timestamp_ms, state.arrived_ms
        return found

    def begin_as(self, source: str) -> None:
        """Sets another incarnation, before the first report."""
        self._source, self._shard = source, shard_of_client(source)

    def state(self) -> ClientState:
        return ClientState(
            self._scope, self._source, self._sequence, tuple(self._pending), self._windows(),
            self._max_timestamp_ms, self._arrived_ms, self._shard,
        )  # fmt: skip

    def add(self, rows: RecordArrays, at_ms: int | Numbers) -> None:
        """Counts records that have reached this tier at `at_ms`: one time for all, or one for each."""
        if not rows.timestamps_ms.size:
            return
        rows = rows._replace(timestamps_ms=believed(rows.timestamps_ms))
        counted_ms = at_ms if isinstance(at_ms, int) else int(at_ms.max())
        if ((rows.timestamps_ms >= 0) & (rows.timestamps_ms <= counted_ms + SKEW_MS)).any():
            self._counted_ms = max(self._counted_ms, counted_ms)
        if len(self._tally.windows) >= MOST_WINDOWS:
            known_ms = self._of_known_windows(rows.timestamps_ms)
            if others := int((known_ms != rows.timestamps_ms).sum()):
                if len(self._pending) < MOST_EARLY:
                    self._report(counted_ms)
                else:
                    self.untimed += others
                    rows = rows._replace(timestamps_ms=known_ms)
        timed = rows.timestamps_ms[rows.timestamps_ms >= 0]
        if timed.size:
            end_ms = window_of(int(timed.min()), self._scope.width_ms) + self._scope.width_ms
            upto_ms = min(self._max_timestamp_ms, counted_ms)  # a time in the future makes nothing late
            self._late_ms = max(self._late_ms, upto_ms - end_ms)
        self._tally.add(rows, at_ms)
        credible = timed[timed <= counted_ms + SKEW_MS]
        if credible.size:
            self._max_timestamp_ms = max(self._max_timestamp_ms, int(credible.max()))

    def reports(self, at_ms: int, *, leaves: bool = False) -> list[Report]:
        """All reports without an acknowledgement, and a new one; an empty one shows that the client lives."""
        if len(self._pending) < MOST_PENDING:
            self._report(at_ms, leaves=leaves)
        return list(self._pending)

    def _report(self, at_ms: int, *, leaves: bool = False) -> None:
        quiet_ms = at_ms - self._idle_ms if at_ms - self._counted_ms >= self._idle_ms else NEVER_MS
        mark_ms = max(min(self._max_timestamp_ms, at_ms), quiet_ms)
        report = client_report(
            self._scope,
            self._source,
            self._sequence,
            self._windows(),
            at_ms=at_ms,
            watermark_ms=self._arrived_ms if self._pending else mark_ms,
            late_ms=self._late_ms,
            leaves=leaves,
            shard=self._shard,
        )
        self._pending.append(report)
        self._sequence += 1
        self._late_ms = 0
        self._tally, self._before = Tally(self._scope.width_ms), {}

    def acknowledged(self, report: Report) -> None:
        """The receiver has the report."""
        self._pending = [one for one in self._pending if one.id != report.id]
        if not self._pending:
            self._arrived_ms = max(self._arrived_ms, report.watermark_ms)

    def _of_known_windows(self, timestamps_ms: Numbers) -> Numbers:
        starts = timestamps_ms - timestamps_ms % self._scope.width_ms
        return np.where(np.isin(starts, list(self._tally.windows)), timestamps_ms, UNTIMED)

    def _windows(self) -> dict[int, Totals]:
        found = dict(self._before)
        for start, totals in self._tally.totals().items():
            found[start] = found.get(start, NO_TOTALS).plus(totals)
        return found
