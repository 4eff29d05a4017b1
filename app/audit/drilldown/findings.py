"""Names what is missing, doubled or altered, given every place of the records that differ.

    upstream's places, downstream's places   of each print that one side has more often (`sieve`)
        --same print: which copy is of which record--> unmatched ones: missing, doubled, foreign
        --another print, the same record-->             altered

Rules
1. Records of the same contents are told apart by where their copies come from (`copy_origins`): a copy stands
   for the record at its origin, if that is known, else for any of the same contents, the first in order.
   Where several records may be the one that is missing, the finding says so (`one_of`).
2. A record that is missing and a copy that nobody has written are one that was altered, if they have the same
   id; else the same exact origin; else two of key, value and timestamp, and nobody else there has these two;
   else if the copy's origin leaves only that one.
3. What has not come to the place of a copier yet is waiting, not missing. What may have gone to, or come
   from, a partition that cannot be read any more is unclear. Neither is called a loss.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from app.audit.drilldown.copy_origins import ClusterPartition, CopyOrigin

MOST_ALIKE = 2_000  # records of the same contents that are told apart
MOST_CLAIMED = 1_000  # records that a copy may be of: beyond, nothing is concluded from its origin


class FindingKind(enum.Enum):
    """What became of a record; the values are what REST and files say."""

    MISSING = "missing"
    ALTERED = "altered"
    DOUBLED = "doubled"
    FOREIGN = "foreign"  # nobody upstream has it
    WAITING = "waiting"
    UNCLEAR = "unclear"


class ObservedRecord(NamedTuple):
    """A record at its place.

    Attributes:
        contents: the print of all that it holds. key, value: the prints of these.
        at_ms: its event time. id: the message's, where it has one. key_bytes: for people.
        origin: of a copy, where it comes from, if that is known.
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
    """What became of one record.

    Attributes:
        source: as upstream has it; None: it does not.
        copy: the one that is altered, doubled or foreign.
        one_of: it is one of so many of the same contents, nobody knows which; 1: it is this one.
        why: it is unclear.
    """

    kind: FindingKind
    source: ObservedRecord | None
    copy: ObservedRecord | None = None
    one_of: int = 1
    why: str = ""


class LossExclusions(NamedTuple):
    """What keeps a difference from being a loss (rule 3).

    Attributes:
        reached: of a partition that is copied, up to which offset it is; not in it: nobody copies it, or
            who does tells nothing.
        unread_copies: partitions (numbers) downstream of which some cannot be read, why.
        unread_sources: partitions upstream of which some cannot be read, why.
        elsewhere: why a copy may be of a record that was not looked for; "": it cannot.
    """

    reached: Mapping[ClusterPartition, int] = {}
    unread_copies: Mapping[int, str] = {}
    unread_sources: Mapping[ClusterPartition, str] = {}
    elsewhere: str = ""


def named(upstream: Iterable[ObservedRecord], downstream: Iterable[ObservedRecord]) -> list[Finding]:
    """What became of the records; of each print all places are given, or none. In the order of kinds and
    places."""
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
        lost, extra, is_sure = _unmatched(sorted(ups, key=_in_log), sorted(downs, key=_in_log))
        missing += [Finding(FindingKind.MISSING, up, one_of=1 if is_sure else len(ups)) for up in lost]
        if ups:
            doubled += [Finding(FindingKind.DOUBLED, _repeated(ups, down), down) for down in extra]
        else:
            foreign += extra
    missing.sort(key=_order)
    pairs = _altered([one.source for one in missing if one.source is not None], foreign)
    taken = {_in_log(copy) for _, copy in pairs}
    gone = {_in_log(source) for source, _ in pairs}
    found = [one for one in missing if one.source is not None and _in_log(one.source) not in gone]
    found += [Finding(FindingKind.ALTERED, source, copy) for source, copy in pairs]
    found += doubled
    found += [Finding(FindingKind.FOREIGN, None, copy) for copy in foreign if _in_log(copy) not in taken]
    return sorted(found, key=_order)


def judged(findings: Iterable[Finding], bounds: LossExclusions) -> list[Finding]:
    """The findings, with those that are no loss told as what they are (rule 3)."""
    return sorted((_judged(one, bounds) for one in findings), key=_order)


def _judged(finding: Finding, bounds: LossExclusions) -> Finding:
    source, copy = finding.source, finding.copy
    if finding.kind is FindingKind.MISSING and source is not None:
        if source.offset >= bounds.reached.get(source.place, source.offset + 1):
            return finding._replace(kind=FindingKind.WAITING)
        why = bounds.unread_copies.get(source.place.partition, "")
    elif finding.kind in {FindingKind.FOREIGN, FindingKind.DOUBLED} and copy is not None:
        at = copy.place.partition if copy.origin is None else copy.origin.source.partition
        unread = (why for place, why in bounds.unread_sources.items() if place.partition == at)
        why = next(unread, "") or (bounds.elsewhere if finding.kind is FindingKind.FOREIGN else "")
    else:
        why = ""
    return finding._replace(kind=FindingKind.UNCLEAR, why=why) if why else finding


# -- the same contents -----------------------------------------------------------------------------------


def _unmatched(
    ups: Sequence[ObservedRecord], downs: Sequence[ObservedRecord]
) -> tuple[list[ObservedRecord], list[ObservedRecord], bool]:
    """Those without a partner, and whether it is certain which ones upstream those are (rule 1)."""
    if not downs:
        return list(ups), [], True
    if len(ups) > MOST_ALIKE:
        return list(ups[: max(0, len(ups) - len(downs))]), list(downs[len(ups) :]), False
    free = dict.fromkeys(range(len(ups)))
    extra: list[ObservedRecord] = []
    unknown: list[ObservedRecord] = []
    is_sure = True
    at = {place: [n for n, up in enumerate(ups) if up.place == place] for place in {up.place for up in ups}}
    # Who may be fewest of those that are left is served first: that way as many as possible are.
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
    for down in sorted(unknown, key=_in_log):
        if free:
            is_sure = False
            del free[next(iter(free))]
        else:
            extra.append(down)
    return [ups[n] for n in free], extra, is_sure or len(ups) == 1


def _repeated(ups: Sequence[ObservedRecord], down: ObservedRecord) -> ObservedRecord:
    """Which record a copy repeats: that of its origin, or one of the same contents."""
    origin = down.origin
    if origin is not None:
        return next((up for up in ups if origin.may_be(up.place, up.offset)), ups[0])
    return ups[0]


# -- other contents --------------------------------------------------------------------------------------


def _altered(
    missing: Sequence[ObservedRecord], foreign: Sequence[ObservedRecord]
) -> list[tuple[ObservedRecord, ObservedRecord]]:
    """Rule 2."""
    pairs: list[tuple[ObservedRecord, ObservedRecord]] = []
    lost = {_in_log(one): one for one in missing}
    strange = {_in_log(one): one for one in sorted(foreign, key=_in_log)}

    def pair(source: ObservedRecord, copy: ObservedRecord) -> None:
        pairs.append((lost.pop(_in_log(source)), strange.pop(_in_log(copy))))

    for name_of, is_unique in _LEVELS:
        sources, copies = _by(lost.values(), name_of, False), _by(strange.values(), name_of, True)
        for name, some in copies.items():
            others = sources.get(name, [])
            if is_unique and len(others) != len(some):
                continue
            for source, copy in zip(others, some, strict=False):
                if copy.origin is None or copy.origin.may_be(source.place, source.offset) or not is_unique:
                    pair(source, copy)
    for source, copy in _by_origin(lost.values(), strange.values()):
        pair(source, copy)
    return pairs


def _by_origin(
    lost: Iterable[ObservedRecord], strange: Iterable[ObservedRecord]
) -> list[tuple[ObservedRecord, ObservedRecord]]:
    """Copies whose origin leaves one record, which no other copy may be."""
    by_place: defaultdict[ClusterPartition, list[ObservedRecord]] = defaultdict(list)
    for one in sorted(lost, key=_in_log):
        by_place[one.place].append(one)
    claims: Counter[tuple[ClusterPartition, int]] = Counter()
    only: list[tuple[ObservedRecord, ObservedRecord]] = []
    for copy in strange:
        if copy.origin is None:
            continue
        near = by_place[copy.origin.source]
        first = bisect_left(near, copy.origin.lowest, key=_offset)
        last = bisect_right(near, copy.origin.highest, key=_offset)
        if last - first == 1:
            only.append((near[first], copy))
        if last - first <= MOST_CLAIMED:
            claims.update(map(_in_log, near[first:last]))
        else:
            return []
    return [(source, copy) for source, copy in only if claims[_in_log(source)] == 1]


def _id(seen: ObservedRecord, _: bool) -> Hashable | None:
    return seen.id


def _exact(seen: ObservedRecord, is_copy: bool) -> Hashable | None:
    if not is_copy:
        return seen.place, seen.offset
    origin = seen.origin
    return (origin.source, origin.lowest) if origin is not None and origin.is_exact else None


_LEVELS: tuple[tuple[Callable[[ObservedRecord, bool], Hashable | None], bool], ...] = (
    (_id, False),
    (_exact, False),
    (lambda seen, _: None if seen.id is not None else (seen.key, seen.at_ms), True),
    (lambda seen, _: None if seen.id is not None else (seen.value, seen.at_ms), True),
    (lambda seen, _: None if seen.id is not None else (seen.key, seen.value), True),
)


def _by(
    many: Iterable[ObservedRecord], name_of: Callable[[ObservedRecord, bool], Hashable | None], is_copy: bool
) -> dict[Hashable, list[ObservedRecord]]:
    found: dict[Hashable, list[ObservedRecord]] = {}
    for one in many:
        name = name_of(one, is_copy)
        if name is not None:
            found.setdefault(name, []).append(one)
    return found


# -- order -----------------------------------------------------------------------------------------------


def _in_log(seen: ObservedRecord) -> tuple[ClusterPartition, int]:
    return seen.place, seen.offset


def _offset(seen: ObservedRecord) -> int:
    return seen.offset


def _highest(seen: ObservedRecord) -> tuple[int, int]:
    return (-1 if seen.origin is None else seen.origin.highest), seen.offset


_KINDS = list(FindingKind)


def _order(finding: Finding) -> tuple[int, ClusterPartition, int]:
    seen = finding.source if finding.source is not None else finding.copy
    assert seen is not None, "it is of some record"
    return _KINDS.index(finding.kind), seen.place, seen.offset


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """How many of each kind."""
    found = Counter(one.kind for one in findings)
    return {kind.value: found[kind] for kind in FindingKind}


def places(findings: Iterable[Finding], kinds: Collection[FindingKind]) -> dict[ClusterPartition, list[int]]:
    """Where the records of these kinds are upstream: offsets in order, by partition."""
    found: defaultdict[ClusterPartition, set[int]] = defaultdict(set)
    for one in findings:
        if one.kind in kinds and one.source is not None:
            found[one.source.place].add(one.source.offset)
    return {place: sorted(offsets) for place, offsets in sorted(found.items())}
