"""A tier's record: its sources' watermarks, and when its windows close. A fold over reports and closings.

Rules (tests/audit/folds/test_tier.py)
1. A source's watermark is the highest that it has reported. The tier's is the lowest of all sources that
   reported lately. So a slow source holds its tier's windows open, and a silent one does not for long. The
   tier's watermark is never ahead of the caller's clock: a source whose clock is fast closes nothing too
   early.
2. Windows close when the tier's watermark is past their end by the lateness: twice the longest recent delay
   of a record, within the plan's bounds. Every closing reduces that delay.
3. A closing is an event (`CloseWindows`) that `due` decides and that is written into the topic. It names the
   silent sources whose watermarks were lower, and those that were silent for so long that windows no longer
   wait for them. Nothing closes while all sources are silent.
4. Positions in the topic decide which closing a window belongs to (`closed_at`). So a window whose first
   report comes after its closing is created closed, in every replay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate, takewhile
from typing import NamedTuple, TypeVar

import msgspec

from switchyard.audit.model.reports import (
    INCARNATION,
    MOST_SOURCE_CHARS,
    MOST_SOURCES,
    MOST_TIME_MS,
    BadReport,
    Report,
    Scope,
    fault_of_names,
)

NOT_YET_MS = -1
MOST_CLOSINGS = 64  # in a record; only a replay of older ones could close windows by the wrong one
MOST_LATE_MS = 12 * 3_600_000  # the highest that counts; a plan's windows wait twice as long at most
MOST_NAMED = 16  # silent sources that a closing names
# Sources that it gives up; the next one gives up more. The topic does not take events of any size.
MOST_GIVEN_UP, MOST_GIVEN_UP_BYTES = MOST_SOURCES, 500_000
CONSUMER = "consumer"  # the tier of the groups that read a cluster's topic


class PlanBounds(NamedTuple):
    """The bounds of a plan, in ms.

    Attributes:
        lateness_ms, most_lateness_ms: How long a window waits behind its end, at least and at most.
        silence_ms: A source without a report for this long is silent.
        give_up_ms: A source that is silent for this long is given up.
        keep_ms: How long windows are kept behind their end.
    """

    lateness_ms: int = 60_000
    most_lateness_ms: int = 3_600_000
    silence_ms: int = 120_000
    give_up_ms: int = 3_600_000
    keep_ms: int = 7 * 24 * 3_600_000


class TierKey(NamedTuple):
    """The key of a tier's record, of one shard; its names contain no slash."""

    topic: str
    tier: str
    cluster: str
    shard: int = 0

    def __str__(self) -> str:
        return "/".join(map(str, self[:]))

    @classmethod
    def parse(cls, text: str) -> TierKey:
        """Raises ValueError: The text is no key of a tier."""
        topic, tier, cluster, shard = text.split("/")
        return cls(topic, tier, cluster, int(shard))


class CloseWindows(msgspec.Struct, frozen=True, omit_defaults=True, tag="close"):
    """Closes the tier's windows that end at `before_ms` or earlier.

    Attributes:
        without: Silent sources with watermarks below `before_ms`, and these; at most `MOST_NAMED`.
        given_up: Sources that windows no longer wait for; at most `MOST_GIVEN_UP`, in `MOST_GIVEN_UP_BYTES`.
    """

    topic: str
    tier: str
    cluster: str
    before_ms: int
    at_ms: int
    without: tuple[tuple[str, int], ...] = ()
    given_up: tuple[str, ...] = ()


class ForgetWindows(msgspec.Struct, frozen=True, tag="forget"):
    """Drops the tier's windows that end at `before_ms` or earlier."""

    topic: str
    tier: str
    cluster: str
    before_ms: int
    at_ms: int


E = TypeVar("E", CloseWindows, ForgetWindows)


class SourceStatus(msgspec.Struct, frozen=True, array_like=True):
    """A source's last watermark, and the time of its last report."""

    watermark_ms: int
    heard_ms: int


class Closing(msgspec.Struct, frozen=True, array_like=True):
    """A closing of windows up to `before_ms`: its position, its time and the silent sources."""

    before_ms: int
    position: int
    at_ms: int
    without: tuple[tuple[str, int], ...] = ()

    def missed(self, end_ms: int) -> tuple[str, ...]:
        """The silent sources that a window which ends at `end_ms` was closed without."""
        return missed(self.without, end_ms)


class TierRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one shard of a tier.

    Attributes:
        closings: The last ones, in their order.
        forgotten_ms, forgotten_at: The end of the last `ForgetWindows`, and its position.
        late_ms: By how much records came late at most; every closing reduces it.
        complete_ms: Windows that begin before it may lack records that expired uncounted; -1: none.
        position: The position of the last event in the record.
    """

    sources: dict[str, SourceStatus] = {}
    closings: tuple[Closing, ...] = ()
    forgotten_ms: int = NOT_YET_MS
    forgotten_at: int = -1
    late_ms: int = 0
    complete_ms: int = -1
    position: int = -1


def check(event: CloseWindows | ForgetWindows) -> None:
    """Raises BadReport: The event has impossible contents."""
    fault = fault_of_names(event.topic, event.tier, event.cluster)
    if not (0 <= event.before_ms <= MOST_TIME_MS and 0 <= event.at_ms <= MOST_TIME_MS):
        fault = fault or f"a time below 0, or above {MOST_TIME_MS}"
    if isinstance(event, CloseWindows):
        names = [name for name, _ in event.without]
        if len(names) > MOST_NAMED or max(map(len, names), default=0) > MOST_SOURCE_CHARS:
            fault = (
                fault or f"{len(names)} silent sources; at most {MOST_NAMED} are allowed, with short names"
            )
        if any(abs(mark_ms) > MOST_TIME_MS for _, mark_ms in event.without):
            fault = fault or f"a watermark above {MOST_TIME_MS}"
        if len(event.given_up) > MOST_GIVEN_UP or sum(map(_size, event.given_up)) > MOST_GIVEN_UP_BYTES:
            limit = (
                f"at most {MOST_GIVEN_UP} in {MOST_GIVEN_UP_BYTES} bytes; let the next closing name the rest"
            )
            fault = fault or f"{len(event.given_up)} sources given up: {limit}"
    if fault:
        raise BadReport(f"{type(event).__name__} of {event.topic[:60]!r}: {fault}")


def bounded(event: E, recorded_ms: int) -> E:
    """The event, limited to windows that end by the audit's clock (`reports.bounded`)."""
    if event.before_ms <= recorded_ms:
        return event
    return msgspec.structs.replace(event, before_ms=recorded_ms)


def missed(without: Iterable[tuple[str, int]], end_ms: int) -> tuple[str, ...]:
    """The silent sources whose watermarks were below `end_ms`."""
    return tuple(name for name, watermark_ms in without if watermark_ms < end_ms)


def on_report(record: TierRecord, report: Report, position: int) -> TierRecord:
    """The record after a report. Windows do not wait for sources beyond `MOST_SOURCES`."""
    if position <= record.position:
        return record
    sources = dict(record.sources)
    known = sources.pop(report.source, None)
    if not report.leaves:
        # A watermark ahead of the source's own clock must not close windows.
        reported_ms = min(report.watermark_ms, report.at_ms)
        if known is not None:
            sources[report.source] = SourceStatus(
                max(known.watermark_ms, reported_ms), max(known.heard_ms, report.at_ms)
            )
        elif len(sources) < MOST_SOURCES:
            sources[report.source] = SourceStatus(reported_ms, report.at_ms)
    # One record of long ago must not hold windows open for weeks, so closings reduce the delay (`on_close`).
    late_ms = max(record.late_ms, min(report.late_ms, MOST_LATE_MS))
    complete_ms = max(record.complete_ms, report.complete_ms)
    return msgspec.structs.replace(
        record, sources=sources, late_ms=late_ms, complete_ms=complete_ms, position=position
    )


def on_close(record: TierRecord, close: CloseWindows, position: int) -> TierRecord:
    """The record after a closing. One that closes nothing new only gives up sources."""
    if position <= record.position:
        return record
    closings = record.closings
    if close.before_ms > closed_before(record):
        closing = Closing(close.before_ms, position, close.at_ms, close.without)
        closings = (*closings, closing)[-MOST_CLOSINGS:]
    given_up = set(close.given_up)
    sources = {name: heard for name, heard in record.sources.items() if name not in given_up}
    return msgspec.structs.replace(
        record, sources=sources, closings=closings, late_ms=record.late_ms * 15 // 16, position=position
    )


def on_forget(record: TierRecord, forget: ForgetWindows, position: int) -> TierRecord:
    if position <= record.position:
        return record
    if forget.before_ms <= record.forgotten_ms:
        return msgspec.structs.replace(record, position=position)
    return msgspec.structs.replace(
        record, forgotten_ms=forget.before_ms, forgotten_at=position, position=position
    )


def rewound(record: TierRecord, end: int) -> TierRecord:
    """The record in a topic that was truncated to `end` (`window.rewound`): closings precede all events."""
    if record.position < end:
        return record
    closings = tuple(Closing(known.before_ms, -1, known.at_ms, known.without) for known in record.closings)
    return msgspec.structs.replace(record, closings=closings, forgotten_at=-1, position=-1)


def closed_before(record: TierRecord) -> int:
    """Windows that end here or earlier are closed; `NOT_YET_MS`: none is."""
    return record.closings[-1].before_ms if record.closings else NOT_YET_MS


def closed_at(record: TierRecord, end_ms: int, position: int) -> Closing | None:
    """The closing, before `position` in the topic, of windows that end at `end_ms`; None: there is none."""
    for closing in record.closings:
        if closing.position < position and closing.before_ms >= end_ms:
            return closing
    return None


def is_forgotten(record: TierRecord, end_ms: int, position: int) -> bool:
    """Whether windows that end at `end_ms` had been dropped before `position`."""
    return end_ms <= record.forgotten_ms and record.forgotten_at < position


def watermark(records: Iterable[TierRecord], now_ms: int, silence_ms: int) -> int:
    """The lowest watermark of the reporting sources; `NOT_YET_MS`: none reports, or one has none yet. It is
    at most `now_ms`, because a topic without the brokers' time may hold reports from the future."""
    heard = [
        source.watermark_ms
        for record in records
        for source in record.sources.values()
        if is_reporting(source, now_ms, silence_ms)
    ]
    return min(now_ms, min(heard, default=NOT_YET_MS))


def is_reporting(source: SourceStatus, now_ms: int, silence_ms: int) -> bool:
    """Whether the source reported lately. A report from the far future does not show when it was made."""
    return abs(now_ms - source.heard_ms) <= silence_ms


def lateness(records: Iterable[TierRecord], bounds: PlanBounds) -> int:
    """How long windows wait behind their end (rule 2)."""
    seen_ms = max((record.late_ms for record in records), default=0)
    return max(bounds.lateness_ms, min(bounds.most_lateness_ms, 2 * seen_ms))


def due(
    scope: Scope, records: Iterable[TierRecord], now_ms: int, bounds: PlanBounds
) -> list[CloseWindows | ForgetWindows]:
    """The events to write into the topic now. `records`: the tier's, of all shards."""
    records = list(records)
    events: list[CloseWindows | ForgetWindows] = []
    low_ms = watermark(records, now_ms, bounds.silence_ms)
    before_ms = low_ms - lateness(records, bounds)
    before_ms -= before_ms % scope.width_ms
    if before_ms > max([0, *map(closed_before, records)]):
        sources = {name: source for record in records for name, source in record.sources.items()}
        without, given_up = _silent(sources, before_ms, now_ms, bounds)
        events.append(
            CloseWindows(scope.topic, scope.tier, scope.cluster, before_ms, now_ms, without, given_up)
        )
    old_ms = now_ms - bounds.keep_ms
    old_ms -= old_ms % scope.width_ms
    if old_ms > max([0, *(record.forgotten_ms for record in records)]):
        events.append(ForgetWindows(scope.topic, scope.tier, scope.cluster, old_ms, now_ms))
    return events


def _silent(
    sources: Mapping[str, SourceStatus], before_ms: int, now_ms: int, bounds: PlanBounds
) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...]]:
    """The silent sources with watermarks below `before_ms`, and the sources to give up: silent for long, or
    clients that have reported as a newer incarnation."""
    heard_ms: dict[str, int] = {}
    for name, source in sources.items():
        client = name.partition(INCARNATION)[0]
        heard_ms[client] = max(source.heard_ms, heard_ms.get(client, source.heard_ms))
    without: list[tuple[str, int]] = []
    given_up: list[str] = []
    for name, source in sorted(sources.items()):
        if is_reporting(source, now_ms, bounds.silence_ms):
            continue
        silence_ms = abs(now_ms - source.heard_ms)
        if source.watermark_ms < before_ms:
            without.append((name, source.watermark_ms))
        if silence_ms > bounds.give_up_ms or source.heard_ms < heard_ms[name.partition(INCARNATION)[0]]:
            given_up.append(name)
    sizes = accumulate(map(_size, given_up[:MOST_GIVEN_UP]))
    fits = sum(1 for _ in takewhile(lambda size: size <= MOST_GIVEN_UP_BYTES, sizes))
    return tuple(without[:MOST_NAMED]), tuple(given_up[:fits])


def _size(name: str) -> int:
    return len(msgspec.json.encode(name)) + 1
