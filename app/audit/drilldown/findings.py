"""Names the missing, doubled and altered records, given the places of all records that differ.

    places upstream, places downstream   of each print with a surplus on one side (`sieve`)
        --same print: which copy is of which record--> without a partner: missing, doubled, foreign
        --another print, the same record-->             altered

Rules (tests/audit/drilldown/test_findings.py)
1. Copies of equal records are assigned by their origins (`copy_origins`). A copy with a known origin stands
   for a record there; any other copy stands for the first record that is left. If several records may be the
   missing one, the finding says so (`one_of`).
2. A missing record and a foreign copy are one altered record if they have the same id, or else the same exact
   origin. Records without ids are paired by two of key, value and timestamp, if as many records as copies
   have these two. At last, a copy is paired with the only record that its origin allows.
3. A record that its copier has not reached is waiting, not missing. A record is unclear if its partner may
   lie in offsets that cannot be read any more, or in a cluster that no plan counts. Neither is a loss.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from app.audit.drilldown.copy_origins import ClusterPartition, CopyOrigin

MOST_ALIKE = 2_000  # records with the same contents that are assigned by origin
MOST_CLAIMED = 1_000  # records that a copy may be of; with more, nothing is concluded from origins


class FindingKind(enum.Enum):
    """A record's fate. REST and files show the values."""

    MISSING = "missing"
    ALTERED = "altered"
    DOUBLED = "doubled"
    FOREIGN = "foreign"  # no record upstream has its contents
    WAITING = "waiting"
    UNCLEAR = "unclear"


class ObservedRecord(NamedTuple):
    """A record at its place.

    Attributes:
        contents: The print of the whole record.
        key, value: The prints of these.
        at_ms: The event time.
        id: The message's id, if it has one.
        key_bytes: The beginning of the key, to show.
        origin: A copy's origin, if it is known.
    """

    place: ClusterPartition
    offset: int
    contents: int
    key: int
    value: int
    at_ms: int
    id: bytes | None = None
    key_bytes: bytes | None = None
    origin: CopyOrigin | None = None


class Finding(NamedTuple):
    """One record's fate.

    Attributes:
        source: The record upstream; None: there is none.
        copy: The altered, doubled or foreign copy.
        one_of: The number of records with the same contents that may be the missing one; 1: it is this one.
        why: The reason why it is unclear.
    """

    kind: FindingKind
    source: ObservedRecord | None
    copy: ObservedRecord | None = None
    one_of: int = 1
    why: str = ""


class LossExclusions(NamedTuple):
    """Reasons why a difference is not a loss (rule 3).

    Attributes:
        reached: Partition upstream -> the offset up to which it was copied. Without an entry: no route copies
            the partition, or its progress is unknown.
        unread_copies: Partition number -> why some of it cannot be read downstream.
        unread_sources: Partition upstream -> why some of it cannot be read.
        uncounted: Why a foreign copy may come from a cluster that no plan counts; "": it cannot.
    """

    reached: Mapping[ClusterPartition, int] = {}
    unread_copies: Mapping[int, str] = {}
    unread_sources: Mapping[ClusterPartition, str] = {}
    uncounted: str = ""


def name_findings(upstream: Iterable[ObservedRecord], downstream: Iterable[ObservedRecord]) -> list[Finding]:
    """The findings, in the order of kinds and places. The places of a print must be complete."""
    groups: defaultdict[int, tuple[list[ObservedRecord], list[ObservedRecord]]] = defaultdict(
        lambda: ([], [])
    )
    for seen in upstream:
        groups[seen.contents][0].append(seen)
    for seen in downstream:
        groups[seen.contents][1].append(seen)
    missing: list[Finding] = []
    doubled: list[Finding] = []
    foreign: list[ObservedRecord] = []
    for ups, downs in groups.values():
        unpaired_sources, extra, is_sure = _unmatched(
            sorted(ups, key=_position), sorted(downs, key=_position)
        )
        missing += [
            Finding(FindingKind.MISSING, up, one_of=1 if is_sure else len(ups)) for up in unpaired_sources
        ]
        if ups:
            doubled += [Finding(FindingKind.DOUBLED, _repeated(ups, down), down) for down in extra]
        else:
            foreign += extra
    missing.sort(key=_order)
    pairs = _altered([finding.source for finding in missing if finding.source is not None], foreign)
    paired_copies = {_position(copy) for _, copy in pairs}
    paired_sources = {_position(source) for source, _ in pairs}
    found = [
        finding
        for finding in missing
        if finding.source is not None and _position(finding.source) not in paired_sources
    ]
    found += [Finding(FindingKind.ALTERED, source, copy) for source, copy in pairs]
    found += doubled
    found += [
        Finding(FindingKind.FOREIGN, None, copy) for copy in foreign if _position(copy) not in paired_copies
    ]
    return sorted(found, key=_order)


def apply_exclusions(findings: Iterable[Finding], bounds: LossExclusions) -> list[Finding]:
    """The findings; those that are no loss become waiting or unclear (rule 3)."""
    return sorted((_apply_exclusions(finding, bounds) for finding in findings), key=_order)


def _apply_exclusions(finding: Finding, bounds: LossExclusions) -> Finding:
    source, copy = finding.source, finding.copy
    if finding.kind is FindingKind.MISSING and source is not None:
        if source.offset >= bounds.reached.get(source.place, source.offset + 1):
            return finding._replace(kind=FindingKind.WAITING)
        why = bounds.unread_copies.get(source.place.partition, "")
    elif finding.kind in {FindingKind.FOREIGN, FindingKind.DOUBLED} and copy is not None:
        at = copy.place.partition if copy.origin is None else copy.origin.source.partition
        unread = (why for place, why in bounds.unread_sources.items() if place.partition == at)
        why = next(unread, "") or (bounds.uncounted if finding.kind is FindingKind.FOREIGN else "")
    else:
        why = ""
    return finding._replace(kind=FindingKind.UNCLEAR, why=why) if why else finding


# -- the same contents -----------------------------------------------------------------------------------


def _unmatched(
    ups: Sequence[ObservedRecord], downs: Sequence[ObservedRecord]
) -> tuple[list[ObservedRecord], list[ObservedRecord], bool]:
    """Records and copies without a partner, and whether these are certainly the records (rule 1)."""
    if not downs:
        return list(ups), [], True
    if len(ups) > MOST_ALIKE:
        return list(ups[: max(0, len(ups) - len(downs))]), list(downs[len(ups) :]), False
    free = dict.fromkeys(range(len(ups)))
    extra: list[ObservedRecord] = []
    unknown: list[ObservedRecord] = []
    is_sure = True
    at = {place: [n for n, up in enumerate(ups) if up.place == place] for place in {up.place for up in ups}}
    # The copy with the lowest highest offset chooses first, so that as many copies as possible find a record.
    for down in sorted(downs, key=_highest):
        if down.origin is None or down.origin.source not in at:
            unknown.append(down)
            continue
        origin = down.origin
        may_be = [n for n in at[origin.source] if origin.lowest <= ups[n].offset <= origin.highest]
        partner = next((n for n in may_be if n in free), None)
        is_sure = is_sure and len(may_be) == 1
        if partner is None:
            extra.append(down)
        else:
            del free[partner]
    for down in sorted(unknown, key=_position):
        if free:
            is_sure = False
            del free[next(iter(free))]
        else:
            extra.append(down)
    return [ups[n] for n in free], extra, is_sure or len(ups) == 1


def _repeated(ups: Sequence[ObservedRecord], down: ObservedRecord) -> ObservedRecord:
    """The record that a copy repeats: the one at its origin, or the first with the same contents."""
    origin = down.origin
    if origin is not None:
        return next((up for up in ups if origin.may_be(up.place, up.offset)), ups[0])
    return ups[0]


# -- other contents --------------------------------------------------------------------------------------


def _altered(
    missing: Sequence[ObservedRecord], foreign: Sequence[ObservedRecord]
) -> list[tuple[ObservedRecord, ObservedRecord]]:
    """Pairs of a missing record and its altered copy (rule 2)."""
    pairs: list[tuple[ObservedRecord, ObservedRecord]] = []
    unpaired_sources = {_position(record): record for record in missing}
    unpaired_copies = {_position(record): record for record in sorted(foreign, key=_position)}

    def pair(source: ObservedRecord, copy: ObservedRecord) -> None:
        pairs.append((unpaired_sources.pop(_position(source)), unpaired_copies.pop(_position(copy))))

    for name_of, is_unique in _LEVELS:
        sources, copies = (
            _by_name(unpaired_sources.values(), name_of, False),
            _by_name(unpaired_copies.values(), name_of, True),
        )
        for name, some in copies.items():
            matches = sources.get(name, [])
            if is_unique and len(matches) != len(some):
                continue
            for source, copy in zip(matches, some, strict=False):
                if copy.origin is None or copy.origin.may_be(source.place, source.offset) or not is_unique:
                    pair(source, copy)
    for source, copy in _by_origin(unpaired_sources.values(), unpaired_copies.values()):
        pair(source, copy)
    return pairs


def _by_origin(
    unpaired_sources: Iterable[ObservedRecord], unpaired_copies: Iterable[ObservedRecord]
) -> list[tuple[ObservedRecord, ObservedRecord]]:
    """Pairs of a copy and the only record that its origin allows, if no other copy may be of that record."""
    by_place: defaultdict[ClusterPartition, list[ObservedRecord]] = defaultdict(list)
    for record in sorted(unpaired_sources, key=_position):
        by_place[record.place].append(record)
    claims: Counter[tuple[ClusterPartition, int]] = Counter()
    only: list[tuple[ObservedRecord, ObservedRecord]] = []
    for copy in unpaired_copies:
        if copy.origin is None:
            continue
        near = by_place[copy.origin.source]
        first = bisect_left(near, copy.origin.lowest, key=_offset)
        last = bisect_right(near, copy.origin.highest, key=_offset)
        if last - first == 1:
            only.append((near[first], copy))
        if last - first <= MOST_CLAIMED:
            claims.update(map(_position, near[first:last]))
        else:
            return []
    return [(source, copy) for source, copy in only if claims[_position(source)] == 1]


def _id(seen: ObservedRecord, _: bool) -> Hashable | None:
    return seen.id


def _exact_origin(seen: ObservedRecord, is_copy: bool) -> Hashable | None:
    if not is_copy:
        return seen.place, seen.offset
    origin = seen.origin
    return (origin.source, origin.lowest) if origin is not None and origin.is_exact else None


_LEVELS: tuple[tuple[Callable[[ObservedRecord, bool], Hashable | None], bool], ...] = (
    (_id, False),
    (_exact_origin, False),
    (lambda seen, _: None if seen.id is not None else (seen.key, seen.at_ms), True),
    (lambda seen, _: None if seen.id is not None else (seen.value, seen.at_ms), True),
    (lambda seen, _: None if seen.id is not None else (seen.key, seen.value), True),
)


def _by_name(
    many: Iterable[ObservedRecord], name_of: Callable[[ObservedRecord, bool], Hashable | None], is_copy: bool
) -> dict[Hashable, list[ObservedRecord]]:
    found: dict[Hashable, list[ObservedRecord]] = {}
    for record in many:
        name = name_of(record, is_copy)
        if name is not None:
            found.setdefault(name, []).append(record)
    return found


# -- order -----------------------------------------------------------------------------------------------


def _position(seen: ObservedRecord) -> tuple[ClusterPartition, int]:
    return seen.place, seen.offset


def _offset(seen: ObservedRecord) -> int:
    return seen.offset


def _highest(seen: ObservedRecord) -> tuple[int, int]:
    return (-1 if seen.origin is None else seen.origin.highest), seen.offset


_KINDS = list(FindingKind)


def _order(finding: Finding) -> tuple[int, ClusterPartition, int]:
    seen = finding.source if finding.source is not None else finding.copy
    assert seen is not None, "a finding has a source or a copy"
    return _KINDS.index(finding.kind), seen.place, seen.offset


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Kind -> number of findings."""
    found = Counter(finding.kind for finding in findings)
    return {kind.value: found[kind] for kind in FindingKind}


def places(findings: Iterable[Finding], kinds: Collection[FindingKind]) -> dict[ClusterPartition, list[int]]:
    """The places upstream of findings of these kinds: partition -> offsets in order."""
    found: defaultdict[ClusterPartition, set[int]] = defaultdict(set)
    for finding in findings:
        if finding.kind in kinds and finding.source is not None:
            found[finding.source.place].add(finding.source.offset)
    return {place: sorted(offsets) for place, offsets in sorted(found.items())}
