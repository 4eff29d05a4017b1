"""Findings against a model that knows a log, its copy, and each record's fate."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from app.audit.drilldown.copy_origins import ClusterPartition, CopyOrigin
from app.audit.drilldown.findings import (
    Finding,
    FindingKind,
    LossExclusions,
    ObservedRecord,
    apply_exclusions,
    counts,
    name_findings,
    places,
)

HOME, AWAY = ClusterPartition("home", "orders", 0), ClusterPartition("away", "orders", 0)
OTHER = ClusterPartition("home", "orders", 1)
FATES = ("kept", "kept", "lost", "doubled", "altered")


def seen(offset: int, contents: int, place: ClusterPartition = HOME, **more: object) -> ObservedRecord:
    """A record whose time, key and value follow from its contents."""
    return ObservedRecord(
        place, offset, contents, **{"key": contents, "value": contents, "at_ms": contents, **more}
    )


def changed(record: ObservedRecord) -> ObservedRecord:
    """The same key and time, another value."""
    return record._replace(contents=-record.contents - 1, value=-record.value - 1)


Fated = list[tuple[int, str]]  # of each record of the source: its contents, what becomes of its copy
fated = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(FATES)), max_size=30)


def copied(
    source: Fated, slack: Callable[[], tuple[int, int]] | None
) -> tuple[list[ObservedRecord], list[ObservedRecord]]:
    """A log and its copy. `slack`: by how much a copy's origin is known too widely; None: not at all."""
    ups, downs = [], []
    for offset, (contents, fate) in enumerate(source):
        up = seen(offset, contents)
        ups.append(up)
        for _ in range({"lost": 0, "doubled": 2}.get(fate, 1)):
            origin = None
            if slack is not None:
                below, above = slack()
                origin = CopyOrigin(HOME, max(0, offset - below), offset + above)
            down = up._replace(place=AWAY, offset=len(downs), origin=origin)
            downs.append(changed(down) if fate == "altered" else down)
    return ups, downs


def differing(
    ups: list[ObservedRecord], downs: list[ObservedRecord]
) -> tuple[list[ObservedRecord], list[ObservedRecord]]:
    """Only the records that a sieve would report."""
    surplus = Counter(up.contents for up in ups)
    surplus.subtract(Counter(down.contents for down in downs))
    return [up for up in ups if surplus[up.contents]], [down for down in downs if surplus[down.contents]]


def offsets_of(findings: list[Finding], kind: FindingKind) -> list[int]:
    return sorted(one.source.offset for one in findings if one.kind is kind and one.source is not None)


@given(fated)
def test_exact_origins_name_every_difference_and_nothing_else(source: Fated) -> None:
    ups, downs = copied(source, lambda: (0, 0))
    findings = name_findings(ups, downs)
    for fate, kind in (
        ("lost", FindingKind.MISSING),
        ("doubled", FindingKind.DOUBLED),
        ("altered", FindingKind.ALTERED),
    ):
        assert offsets_of(findings, kind) == [n for n, (_, what) in enumerate(source) if what == fate]
    assert counts(findings)["foreign"] == 0
    assert all(one.one_of == 1 for one in findings)
    shown = [(one.copy.origin.lowest, one.source.offset) for one in findings
             if one.copy is not None and one.copy.origin is not None and one.source is not None]  # fmt: skip
    assert all(origin == offset for origin, offset in shown), "a copy is reported with its own record"


@given(fated)
def test_findings_without_origins_are_the_difference_of_two_multisets(source: Fated) -> None:
    ups, downs = copied(source, None)
    findings = name_findings(*differing(ups, downs))
    before, after = Counter(up.contents for up in ups), Counter(down.contents for down in downs)
    lost = Counter(
        f.source.contents
        for f in findings
        if f.kind in {FindingKind.MISSING, FindingKind.ALTERED} and f.source
    )
    extra = Counter(f.copy.contents for f in findings if f.copy is not None)
    assert lost == before - after
    assert extra == after - before
    assert Counter(f.one_of for f in findings if f.kind is FindingKind.ALTERED and f.one_of != 1) == Counter()


@given(fated, st.integers(0, 1 << 30))
def test_vague_origins_never_add_findings(source: Fated, seed: int) -> None:
    chance = random.Random(seed)
    ups, downs = copied(source, lambda: (chance.randrange(3), chance.randrange(3)))
    findings = name_findings(ups, downs)
    found = counts(findings)
    assert found["missing"] - found["doubled"] - found["foreign"] == len(ups) - len(downs)
    fates = Counter(what for _, what in source)
    assert found["missing"] + found["altered"] <= fates["lost"] + fates["altered"]
    assert found["doubled"] <= fates["doubled"]


def test_a_missing_record_among_equal_ones_is_one_of_them() -> None:
    ups = [seen(offset, 7) for offset in (5, 9, 12)]
    downs = [seen(offset, 7, AWAY) for offset in (105, 107)]
    (lost,) = name_findings(ups, downs)
    assert (lost.kind, lost.one_of) == (FindingKind.MISSING, 3)
    known = [down._replace(origin=CopyOrigin(HOME, at, at)) for down, at in zip(downs, (5, 12), strict=True)]
    (lost,) = name_findings(ups, known)
    assert (lost.source, lost.one_of) == (ups[1], 1)
    within = [
        downs[0]._replace(origin=CopyOrigin(HOME, 4, 8)),
        downs[1]._replace(origin=CopyOrigin(HOME, 10, 12)),
    ]
    assert name_findings(ups, within) == [lost], "wide origins that leave one record each are as good"
    wide = [down._replace(origin=CopyOrigin(HOME, 0, 20)) for down in downs]
    assert [one.one_of for one in name_findings(ups, wide)] == [3], "wider ones are not"


def test_an_altered_record_is_found_by_its_id_whatever_else_changed() -> None:
    up = seen(3, 10, id=b"a")
    down = ObservedRecord(AWAY, 8, 99, 98, 97, 96, id=b"a")
    assert name_findings([up], [down]) == [Finding(FindingKind.ALTERED, up, down)]
    other = down._replace(id=b"b")
    assert [one.kind for one in name_findings([up], [other])] == [FindingKind.MISSING, FindingKind.FOREIGN]


def test_a_changed_key_or_time_is_an_alteration_if_no_other_record_matches() -> None:
    up = seen(3, 10)
    for field in ("key", "at_ms", "value"):
        down = up._replace(place=AWAY, offset=8, contents=11, **{field: 11})
        assert name_findings([up], [down]) == [Finding(FindingKind.ALTERED, up, down)], field
    alike = [up, up._replace(offset=4, contents=12, value=12)]
    down = up._replace(place=AWAY, contents=11, value=11)
    found = name_findings(alike, [down])
    assert [one.kind for one in found] == [FindingKind.MISSING, FindingKind.MISSING, FindingKind.FOREIGN]
    known = down._replace(origin=CopyOrigin(HOME, 4, 4))
    assert name_findings(alike, [known])[1] == Finding(FindingKind.ALTERED, alike[1], known)
    nothing_alike = ObservedRecord(AWAY, 8, 90, 91, 92, 93, origin=CopyOrigin(HOME, 0, 3))
    assert name_findings([up], [nothing_alike]) == [Finding(FindingKind.ALTERED, up, nothing_alike)]
    nor_this = nothing_alike._replace(offset=9, contents=80, key=81, value=82, at_ms=83)
    assert [one.kind for one in name_findings([up], [nothing_alike, nor_this])] == [
        FindingKind.MISSING, FindingKind.FOREIGN, FindingKind.FOREIGN,
    ], "either may be of it"  # fmt: skip


def test_a_record_that_its_copier_has_not_reached_is_waiting() -> None:
    findings = name_findings([seen(3, 1), seen(9, 2), seen(9, 3, OTHER)], [])
    found = apply_exclusions(findings, LossExclusions(reached={HOME: 9}))
    assert [(one.kind, one.source.offset) for one in found if one.source] == [
        (FindingKind.MISSING, 3), (FindingKind.MISSING, 9), (FindingKind.WAITING, 9),
    ]  # fmt: skip


def test_records_behind_unreadable_offsets_are_unclear_not_lost() -> None:
    ups, downs = [seen(3, 1), seen(4, 2, OTHER)], [seen(7, 5, AWAY), seen(8, 6, AWAY._replace(partition=1))]
    found = apply_exclusions(
        name_findings(ups, downs),
        LossExclusions(unread_copies={1: "gone"}, unread_sources={HOME: "gone, too"}),
    )
    assert [(one.kind, one.why) for one in found] == [
        (FindingKind.MISSING, ""),
        (FindingKind.FOREIGN, ""),
        (FindingKind.UNCLEAR, "gone, too"),
        (FindingKind.UNCLEAR, "gone"),
    ]
    uncounted = apply_exclusions(name_findings([], downs), LossExclusions(uncounted="west is not counted"))
    assert {one.why for one in uncounted} == {"west is not counted"}


def test_places_are_offsets_by_partition() -> None:
    findings = name_findings([seen(9, 1), seen(3, 2), seen(4, 3, OTHER)], [])
    assert places(findings, {FindingKind.MISSING}) == {HOME: [3, 9], OTHER: [4]}
    assert places(findings, {FindingKind.DOUBLED}) == {}
