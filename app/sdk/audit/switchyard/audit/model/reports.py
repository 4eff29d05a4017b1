"""The audit report: what a source has counted of one of its parts.

    part       a stretch of what a source has to count; part numbers only grow
    [since, upto)   how far the part is counted, in a unit of its own (offsets of a partition)
    final      the part will not be counted any further

A report says of one part everything that was counted so far, of each window that has changed since the last
report that is known to have arrived; a final one of all windows that the part has touched. So of the reports
of a part the widest counts, and it does not matter which of them arrive, in what order, how often, from whom
(`app.audit.folds.counted_parts`).

Partitions: part n begins at n times a fixed number of offsets (PART_OFFSETS of a consumer's,
`app.audit.pump.partition` has that of other tiers), a batch belongs to the part of its base offset. Clients:
part n is the report with the sequence number n of one incarnation, [0, 1), final. What has only a UUID (part
`NO_PART`) is known by that, up to `MOST_IDS` a source and window; more are refused, and told.
"""

from __future__ import annotations

import re
import uuid
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from switchyard.audit.model.fingerprint import MASK
from switchyard.audit.model.latencies import CorruptLatencies, Latencies
from switchyard.audit.model.spans import MAX_OFFSET, NO_SPAN, Range
from switchyard.audit.model.totals import LAST_MS, Totals

PART_OFFSETS = 1 << 16
NO_PART = -1
INCARNATION = "@"  # in a source's name: behind it stands which incarnation of the client it is
LAST_PART = MAX_OFFSET // PART_OFFSETS
MOST_IDS = 10_000
MOST_SOURCE_CHARS = 600
MOST_ID_CHARS = 45  # of a UUID's text, as a URN
MOST_OF_REPORT = 1 << 50  # records or bytes of a window
MOST_CLUSTERS = 100  # whose offsets are in a window of a report
MOST_TIME_MS = 1 << 62  # a number that any store has room for
MOST_SOURCES = 10_000  # of a tier's shard, and of a window
# Into so many table values the clients of a tier are spread. They stay in one partition of the tables: all of
# a topic's tiers are closed and compared by one writer.
CLIENT_SHARDS = 8
SHARD_PARTITIONS = 8  # whose windows share a table value, which is written with every report: some 10 kB
# As of Kafka's topics; keys of tables are made of names and slashes. A group's place: `tier.place_of`.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PLACE = re.compile(r"[A-Za-z0-9._-]{1,249}(:[A-Za-z0-9._-]{1,249})?")
_PARTITION = re.compile(r".*/([0-9]{1,10})", re.DOTALL)  # a source: topic id and number
_NAMESPACE = uuid.UUID("6f1b7e2e-6a0e-5d0a-9a86-2b0f3f6c9f5e")


class Scope(NamedTuple):
    """What a source counts: a topic (its id, where there is one) at a tier of a cluster, in windows."""

    topic: str
    tier: str
    cluster: str
    width_ms: int


class Increment(msgspec.Struct, frozen=True, array_like=True):
    """What a part holds of the window that begins at `start_ms` (`counter.UNTIMED`). `span`: of the offsets
    of these records (`spans`); reports of older versions, and of clients, have none."""

    start_ms: int
    totals: Totals
    span: Range = NO_SPAN


class Report(msgspec.Struct, frozen=True, omit_defaults=True, tag="report"):
    """See the module. `id`: a UUID; the same for the same report, whoever makes it.

    Attributes:
        source: who counted: a partition of a topic, or an incarnation of a client.
        at_ms: when it was made.
        watermark_ms: nothing below is expected of the source any more, -1: it cannot say.
        late_ms: by how much its watermark was past the end of a window to which something was added, 0: not.
        shard: of the tables (`shards_of`).
        complete_ms: windows that begin before it may lack what had gone before it was counted, -1: none.
        leaves: the source has said everything, and ends.
    """

    id: str
    topic: str
    tier: str
    cluster: str
    width_ms: int
    source: str
    at_ms: int
    windows: tuple[Increment, ...] = ()
    part: int = NO_PART
    since: int = 0
    upto: int = 0
    final: bool = False
    watermark_ms: int = -1
    late_ms: int = 0
    shard: int = 0
    complete_ms: int = -1
    leaves: bool = False

    @property
    def scope(self) -> Scope:
        return Scope(self.topic, self.tier, self.cluster, self.width_ms)


class BadReport(ValueError):
    """A report that says what none can say; it is told, and counts for nothing."""


def fault_of_names(topic: str, tier: str, cluster: str) -> str:
    """What is wrong with the names of a tier, "": nothing."""
    for field, name, pattern in (
        ("topic", topic, _NAME),
        ("tier", tier, _NAME),
        ("cluster", cluster, _PLACE),
    ):
        if not pattern.fullmatch(name) and (field, name) != ("cluster", ""):
            return f"{field} {name[:60]!r}: use letters, digits, '.', '_' and '-', at most 249"
    return ""


def checked(report: Report) -> Report:
    """The report, as it is.

    Raises:
        BadReport: with what is wrong.
    """
    fault = _fault(report)
    if fault:
        raise BadReport(f"report {report.id} of {report.source}: {fault}")
    return report


def _fault(report: Report) -> str:
    if not _is_uuid(report.id):
        return "its id is no UUID"
    if fault := fault_of_names(report.topic, report.tier, report.cluster):
        return fault
    if not 0 < len(report.source) <= MOST_SOURCE_CHARS:
        return f"a source's name of {len(report.source)} characters; it has 1 to {MOST_SOURCE_CHARS}"
    if report.shard not in (shards := shards_of(report.source)):
        return f"shard {report.shard} of a source which belongs in {' or '.join(map(str, sorted(shards)))}"
    times = report.late_ms, report.at_ms, report.watermark_ms, report.complete_ms
    if min(times[:2]) < 0 or min(times) < -1 or max(times) > MOST_TIME_MS:
        return f"a time below 0, or above {MOST_TIME_MS}"
    if not 0 < report.width_ms <= LAST_MS:
        return f"windows of {report.width_ms} ms"
    if not NO_PART <= report.part <= LAST_PART or not 0 <= report.since <= report.upto <= MAX_OFFSET:
        return f"part {report.part} of [{report.since}, {report.upto})"
    starts = [increment.start_ms for increment in report.windows]
    if len(set(starts)) != len(starts):
        return "a window is in it twice"
    for increment in report.windows:
        totals = increment.totals
        start_ms = increment.start_ms
        if start_ms != -1 and (not 0 <= start_ms <= LAST_MS or start_ms % report.width_ms):
            return f"no window begins at {increment.start_ms}"
        many = (
            totals.count,
            totals.nbytes,
            totals.duplicates,
            totals.identified,
            totals.sourced,
            totals.contained,
        )
        if min(many) < 0:
            return "a count below 0"
        if max(many) > MOST_OF_REPORT:
            return f"a count of {max(many)}, above {MOST_OF_REPORT}"
        if not -1 <= min(totals.first_ms, totals.last_ms) <= max(totals.first_ms, totals.last_ms) <= LAST_MS:
            return f"timestamps {totals.first_ms} to {totals.last_ms}"
        lanes = [
            lane for sums in (totals.ids, totals.offsets, totals.contents) for lane in (sums.low, sums.high)
        ]
        if not 0 <= min(lanes) <= max(lanes) <= MASK:
            return "a fingerprint that is none"
        if (
            len(totals.offsets_of) > MOST_CLUSTERS
            or max(map(len, totals.offsets_of), default=0) > MOST_SOURCE_CHARS
        ):
            return f"offsets of {len(totals.offsets_of)} clusters; at most {MOST_CLUSTERS}, of short names"
        if not 0 <= increment.span[0] <= increment.span[1] <= MAX_OFFSET:
            return f"offsets [{increment.span[0]}, {increment.span[1]})"
        try:
            Latencies.from_bytes(totals.latencies)
        except CorruptLatencies as error:
            return str(error)
    return ""


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return len(text) <= MOST_ID_CHARS


def bounded(report: Report, recorded_ms: int) -> Report:
    """The report with no time ahead of the clock of the audit.

    Args:
        recorded_ms: when it came into the topic, by the brokers' clock: the same at every replay.
    """
    if max(report.at_ms, report.watermark_ms, report.complete_ms) <= recorded_ms:
        return report
    return msgspec.structs.replace(
        report,
        at_ms=min(report.at_ms, recorded_ms),
        watermark_ms=min(report.watermark_ms, recorded_ms),
        complete_ms=min(report.complete_ms, recorded_ms),
    )


def report_id(scope: Scope, source: str, part: int, since: int, upto: int, *, final: bool) -> str:
    """The UUID of a report of a part."""
    return str(uuid.uuid5(_NAMESPACE, f"{'/'.join(map(str, scope))}/{source}/{part}/{since}/{upto}/{final}"))


def client_report(
    scope: Scope,
    source: str,
    sequence: int,
    windows: Mapping[int, Totals],
    *,
    at_ms: int,
    watermark_ms: int,
    late_ms: int = 0,
    leaves: bool = False,
    shard: int | None = None,
) -> Report:
    """What a client has counted since its last report.

    Args:
        source: one incarnation of it; another one begins again with sequence 0.
        sequence: 0, 1, 2, … for this scope; kept with the figures until the report is acknowledged.
        windows: start -> totals.
        shard: where its other reports are; by default where a new incarnation's are.
    """
    return Report(
        id=report_id(scope, source, sequence, 0, 1, final=True),
        topic=scope.topic,
        tier=scope.tier,
        cluster=scope.cluster,
        width_ms=scope.width_ms,
        source=source,
        at_ms=at_ms,
        windows=tuple(Increment(start, totals) for start, totals in sorted(windows.items())),
        part=sequence,
        since=0,
        upto=1,
        final=True,
        watermark_ms=watermark_ms,
        late_ms=late_ms,
        shard=shard_of_client(source) if shard is None else shard,
        leaves=leaves,
    )


def shard_of(partition: int) -> int:
    """Which table value holds a partition."""
    return partition // SHARD_PARTITIONS


def shard_of_client(source: str) -> int:
    """Which table value holds a client: all its incarnations, as one ends the one before."""
    return zlib.crc32(source.partition(INCARNATION)[0].encode()) % CLIENT_SHARDS


def shards_of(source: str) -> set[int]:
    """Which table values may hold a source: a client's (former versions put all of them into 0), and that of
    its partition, if it may be one."""
    found = {0, shard_of_client(source)}
    if partition := _PARTITION.fullmatch(source.partition(INCARNATION)[0]):
        found.add(shard_of(int(partition[1])))
    return found
