"""Any event in the audit topic counts, or is passed over and reported, and later events count."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.audit.folds import collector as folds_collector
from app.audit.folds.collector import CollectorTick, Event
from app.audit.folds.counted_parts import ReportOutcome
from app.audit.folds.tier import CloseWindows, ForgetWindows
from app.audit.jobs.replay_tail import Recorded
from app.audit.query.book_share import share_of
from app.audit.query.view import WindowQuery, joined, verdict_rows, window_rows
from app.controllog import codec
from switchyard.audit.model.fingerprint import Fingerprint
from switchyard.audit.model.latencies import Latencies
from switchyard.audit.model.reports import BadReport, Increment, Report, client_report
from switchyard.audit.model.totals import Totals
from tests.audit.jobs.test_books import BOUNDS, SCOPE, Rig, Topic, report

NOW_MS = 1_700_000_000_000
BEFORE, AFTER = 3, 5  # what is counted by the good report before, and by the one behind all


def a_report() -> Report:
    latencies = Latencies()
    latencies.add(latencies.counts[:3] + 5)
    totals = Totals(
        2, 200, 1, Fingerprint(1, 2), 2, Fingerprint(3, 4), 2, ("home",), latencies.to_bytes(), 60_000, 61_000
    )
    return Report(
        report(1, 1).id, *SCOPE, "t/7", NOW_MS, (Increment(60_000, totals, (5, 9)), Increment(-1, totals)),
        part=0, since=0, upto=9, watermark_ms=NOW_MS, late_ms=7, complete_ms=60_000,
    )  # fmt: skip


EVENTS: list[Event] = [
    a_report(),
    client_report(SCOPE, "client@1", 3, {0: Totals(1)}, at_ms=NOW_MS, watermark_ms=NOW_MS),
    CloseWindows(*SCOPE[:3], 120_000, NOW_MS, (("t/7", 5),), ("t/8",)),
    ForgetWindows(*SCOPE[:3], 60_000, NOW_MS),
    CollectorTick(1),
]
NUMBERS = st.one_of(
    st.sampled_from([-(2**63), -1, 1, 60_000, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, 10**300]),
    st.integers(-5, 5),
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | NUMBERS | st.text(max_size=5)
    | st.sampled_from(["x" * 1_000, "a/b", "\x00", "\U0001f600", "AAAA", "-" * 500]),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(max_size=3), some, max_size=3),
    max_leaves=8,
)  # fmt: skip


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, one in inner for place in _places(one, (*at, key)))]


def _numbers(value: Any) -> list[int]:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [number for one in inner for number in _numbers(one)]
    return [value] if isinstance(value, int) else []


def _put(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    found = dict(value) if isinstance(value, dict) else list(value)
    found[at[0]] = _put(value[at[0]], at[1:], new)
    return found


@st.composite
def bad_bytes(draw: st.DrawFn) -> bytes:
    """An event with values that it cannot have, cut off, or with other bytes in it; or anything."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    tree = json.loads(codec.encode(draw(st.sampled_from(EVENTS))))
    for _ in range(draw(st.integers(0, 2))):
        tree = _put(tree, draw(st.sampled_from(_places(tree))), draw(NUMBERS | ANYTHING))
    data = json.dumps(tree, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    if draw(st.booleans()):
        return data
    at = draw(st.integers(0, len(data)))
    return data[:at] + draw(st.just(b"") | st.binary(max_size=3)) + data[at + draw(st.integers(0, 900)) :]


@given(st.lists(bad_bytes(), min_size=1, max_size=4))
@example([b"[" * 200_000])
@example([b'{"type":"tick","at_ms":1,"x":' + b"[" * 200_000])
@example([b'{"a":' * 100_000])
@example([b'{"type":"tick","at_ms":1,"x":"\xff\xfe"}', b'{"type":"tick","at_ms":1e400}', b"\xff", b""])
@example([codec.encode(msgspec.structs.replace(a_report(), part=10**300))])
@example([codec.encode(CloseWindows(*SCOPE[:3], 10**300, 10**300))])
@example([codec.encode(CloseWindows(*SCOPE[:3], 1 << 62, 1 << 62))])
@example([codec.encode(ForgetWindows(*SCOPE[:3], 1 << 62, 1 << 62))])
@example([b'{"type":"report","topic":"orders","x":"' + b"y" * 900_000])
def test_bad_events_are_passed_over_and_those_around_them_count(many: list[bytes]) -> None:
    asyncio.run(_passed_over_and_reported(many))


async def _passed_over_and_reported(many: list[bytes]) -> None:
    rig = Rig(Topic())
    await rig.event(0, codec.encode(report(1, BEFORE)), NOW_MS)
    for offset, data in enumerate(many, 1):
        try:
            await rig.event(offset, data, NOW_MS)
        except (codec.BadEvent, BadReport) as error:
            rig.books.pass_over(5, offset, error)
    later = "later"  # none of the others can have forgotten, or filled it
    last = msgspec.structs.replace(report(2, AFTER), topic=later)
    await rig.event(len(many) + 1, codec.encode(last), NOW_MS)
    collector = rig.books.books[5].collector
    assert [one.totals.count for key, one in collector.windows.items() if key.topic == later] == [AFTER]
    # They cannot have closed or dropped a window of the same tier that is not over, either.
    goes_on = Report(
        report(3, 1).id, *SCOPE, "goes-on/0", NOW_MS, (Increment(NOW_MS // 60_000 * 60_000, Totals(AFTER)),),
        part=0, upto=3,
    )  # fmt: skip
    await rig.event(len(many) + 2, codec.encode(goes_on), NOW_MS)
    of_now = [one.totals for key, one in collector.windows.items()
              if key.start_ms == goes_on.windows[0].start_ms and key.scope == SCOPE]  # fmt: skip
    assert [totals.count for totals in of_now] == [AFTER]
    assert ("audit-event-passed-over" in {incident[0] for incident in rig.incidents}) == bool(
        rig.books.passed_over
    )
    values = [json.loads(value) for value in (*rig.windows.values(), *rig.tiers.values())]
    assert all(-(2**63) <= number < 2**64 for value in values for number in _numbers(value)), "as others read"
    collector.due(NOW_MS, BOUNDS)
    shares = msgspec.json.encode(share_of({5: (9, collector)}, WindowQuery()))
    known = joined([msgspec.json.decode(shares, type=type(share_of({}, WindowQuery())))], lambda _: 5)
    window_rows(known, NOW_MS, lambda *_: BOUNDS)
    verdict_rows(known, NOW_MS, lambda *_: None, lambda _: [])
    # A successor reads the same, with the bad ones among the last events.
    other = Rig(rig.topic, again=99)
    other.windows, other.tiers, other.last.events = rig.windows, rig.tiers, rig.last.events
    await other.event(len(many) + 3, codec.encode(CollectorTick(1)))
    assert other.books.books[5].collector.windows == collector.windows
    assert other.books.books[5].collector.tiers == collector.tiers


async def test_an_event_that_breaks_the_fold_does_not_hinder_a_takeover(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No event is known to break the fold, so a good one breaks it here."""
    apply = folds_collector.Collector.apply

    def breaks(self: folds_collector.Collector, event: Event, *args: Any) -> folds_collector.TableChanges:
        if isinstance(event, CollectorTick) and event.at_ms == 666:
            raise ZeroDivisionError
        return apply(self, event, *args)

    monkeypatch.setattr(folds_collector.Collector, "apply", breaks)
    rig = Rig(Topic(), again=9)
    rig.last.events = [
        Recorded(0, codec.encode(report(1, 1)), 1, b""),
        Recorded(1, codec.encode(CollectorTick(666)), 1, b""),
    ]
    await rig.event(2, codec.encode(report(2, 2)))
    assert rig.count == 2


async def test_few_of_many_bad_events_are_reported() -> None:
    rig = Rig(Topic())
    for offset in range(1_234):
        rig.books.pass_over(5, offset, ValueError("why"))
    assert [incident[2].split(" ")[0] for incident in rig.incidents] == ["1", "10", "100", "1000"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (BadReport("why"), "are not counted"),
        (codec.BadEvent("why"), "are not counted"),
        (ZeroDivisionError("why"), "may still count"),
    ],
)
async def test_the_incident_of_a_broken_fold_does_not_call_the_event_uncounted(
    error: Exception, words: str
) -> None:
    rig = Rig(Topic())
    rig.books.pass_over(5, 7, error)
    ((kind, subject, message, remedy),) = rig.incidents
    assert (kind, subject) == ("audit-event-passed-over", "audit/5")
    assert "at offset 7: " in message
    assert "why" in message
    assert words in remedy


def test_a_value_stops_growing_before_the_changelog_refuses_it() -> None:
    """Clients with long names; reports of parts with gaps between them."""
    collector, position = folds_collector.Collector(), 0
    verdicts: list[ReportOutcome] = []
    while ReportOutcome.FULL not in verdicts and position < 9_000:
        name = f"{position:0>600}"
        made = client_report(SCOPE, name, 0, {0: Totals(1)}, at_ms=5, watermark_ms=5)
        one = msgspec.structs.replace(made, shard=0)
        verdicts = [verdict for _, verdict in collector.apply(one, position).verdicts]
        position += 1
    assert verdicts == [ReportOutcome.FULL]
    sizes = [len(codec.encode(one)) for one in (*collector.windows.values(), *collector.tiers.values())]
    assert max(sizes) <= folds_collector.MOST_VALUE_BYTES
    known = client_report(SCOPE, f"{0:0>600}", 1, {0: Totals(1)}, at_ms=5, watermark_ms=9)
    written = collector.apply(msgspec.structs.replace(known, shard=0), position)
    assert written.tiers, "who is known is heard on"
