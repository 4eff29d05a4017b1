"""The audit report: what a source has counted of one of its parts.

    part       a stretch of the records that a source counts; part numbers only grow
    [since, upto)   the counted range of the part, in a unit of its own (offsets of a partition)
    final      the part will not be counted any further

A report has all counts of one part so far. It has each window that changed since the last report that is
known to have arrived; a final report has all windows of the part. So the widest report of a part counts,
whichever reports arrive, in which order, how often and from whom (`app.audit.folds.counted_parts`).

Partitions: part n begins at n times a fixed number of offsets, and a batch belongs to the part of its base
offset. (PART_OFFSETS is a consumer's number; `app.audit.pump.partition` has that of other tiers.) Clients:
part n is the report with sequence number n of one incarnation, [0, 1), final. A report without a part
(`NO_PART`) is known by its UUID, up to `MOST_IDS` for each source and window; more are refused, and reported.
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
INCARNATION = "@"  # in a source's name, before the id of the client's incarnation
LAST_PART = MAX_OFFSET // PART_OFFSETS
MOST_IDS = 10_000
MOST_SOURCE_CHARS = 600
MOST_ID_CHARS = 45  # of a UUID's text, as a URN
MOST_OF_REPORT = 1 << 50  # records or bytes of a window
MOST_CLUSTERS = 100  # in `offsets_of` of a window
MOST_TIME_MS = 1 << 62  # any store can hold it
MOST_SOURCES = 10_000  # in a tier's shard, and in a window
# The clients of a tier are spread over this many table values. All are in one partition of the tables: one
# writer closes and compares all tiers of a topic.
CLIENT_SHARDS = 8
SHARD_PARTITIONS = 8  # share a table value, which each report writes: some 10 kB
# As Kafka's topic names; keys of tables join them with slashes. `places.place_of` has the place of a group.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PLACE = re.compile(r"[A-Za-z0-9._-]{1,249}(:[A-Za-z0-9._-]{1,249})?")
_PARTITION = re.compile(r".*/([0-9]{1,10})", re.DOTALL)  # a source: topic id and number
_NAMESPACE = uuid.UUID("6f1b7e2e-6a0e-5d0a-9a86-2b0f3f6c9f5e")


class Scope(NamedTuple):
    """The scope of a count: a topic (its id, if it has one) at a tier of a cluster, and the windows' ms."""

    topic: str
    tier: str
    cluster: str
    width_ms: int


class Increment(msgspec.Struct, frozen=True, array_like=True):
    """A part's totals in the window that begins at `start_ms` (`tally.UNTIMED`: records without a timestamp).

    `span` is the range of these records' offsets (`spans`). Reports of older versions and of clients have
    none.
    """

    start_ms: int
    totals: Totals
    span: Range = NO_SPAN


class Report(msgspec.Struct, frozen=True, omit_defaults=True, tag="report"):
    """A report of one part. `id` is a UUID, the same whoever makes the same report.

    Attributes:
        source: A partition of a topic, or an incarnation of a client.
        at_ms: When the report was made.
        watermark_ms: The source expects nothing below this time; -1: unknown.
        late_ms: By how much the watermark had passed the end of a window that still got records; 0: it had
            not.
        shard: The shard in the tables (`shards_of`).
        complete_ms: Windows that begin before it may lack records that had expired before they were counted;
            -1: none.
        leaves: The source has reported everything, and ends.
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
    """A report with impossible contents. It is reported, and does not count."""


def fault_of_names(topic: str, tier: str, cluster: str) -> str:
    """The fault in the names of a tier; "": none."""
    for field, name, pattern in (
        ("topic", topic, _NAME),
        ("tier", tier, _NAME),
        ("cluster", cluster, _PLACE),
    ):
        if not pattern.fullmatch(name) and (field, name) != ("cluster", ""):
            return f"{field} {name[:60]!r}: use letters, digits, '.', '_' and '-', at most 249"
    return ""


def checked(report: Report) -> Report:
    """The same report.

    Raises:
        BadReport: With the fault.
    """
    fault = _fault(report)
    if fault:
        raise BadReport(f"report {report.id} of {report.source}: {fault}")
    return report


def _fault(report: Report) -> str:
    if not _is_uuid(report.id):
        return "its id is not a UUID"
    if fault := fault_of_names(report.topic, report.tier, report.cluster):
        return fault
    if not 0 < len(report.source) <= MOST_SOURCE_CHARS:
        return f"a source's name of {len(report.source)} characters; 1 to {MOST_SOURCE_CHARS} are allowed"
    if report.shard not in (shards := shards_of(report.source)):
        return f"shard {report.shard}; its source belongs in {' or '.join(map(str, sorted(shards)))}"
    times = report.late_ms, report.at_ms, report.watermark_ms, report.complete_ms
    if min(times[:2]) < 0 or min(times) < -1 or max(times) > MOST_TIME_MS:
        return f"a time below 0, or above {MOST_TIME_MS}"
    if not 0 < report.width_ms <= LAST_MS:
        return f"windows of {report.width_ms} ms"
    if not NO_PART <= report.part <= LAST_PART or not 0 <= report.since <= report.upto <= MAX_OFFSET:
        return f"part {report.part} of [{report.since}, {report.upto})"
    starts = [increment.start_ms for increment in report.windows]
    if len(set(starts)) != len(starts):
        return "it has a window twice"
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
            return "an invalid fingerprint"
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
    """The report without times ahead of the audit's clock.

    Args:
        recorded_ms: When it arrived in the topic, by the brokers' clock: the same in every replay.
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
    """A client's counts since its last report.

    Args:
        source: One incarnation of the client; another one begins again with sequence 0.
        sequence: 0, 1, 2, … in this scope; kept with the figures until the report is acknowledged.
        windows: Start -> totals.
        shard: The shard of its other reports; by default that of a new incarnation.
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
    """The table value of a partition."""
    return partition // SHARD_PARTITIONS


def shard_of_client(source: str) -> int:
    """The table value of a client, with all its incarnations, because each ends its predecessor."""
    return zlib.crc32(source.partition(INCARNATION)[0].encode()) % CLIENT_SHARDS


def shards_of(source: str) -> set[int]:
    """The possible table values of a source.

    A client may be in its own, or in 0, where earlier versions put all clients. A partition is in its own.
    """
    found = {0, shard_of_client(source)}
    if partition := _PARTITION.fullmatch(source.partition(INCARNATION)[0]):
        found.add(shard_of(int(partition[1])))
    return found
