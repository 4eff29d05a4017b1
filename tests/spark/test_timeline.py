"""The timeline of two regions: each event once, with start and end; texts are escaped and bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from app.archive.log import Archive
from app.controllog import codec
from app.controllog.alert_state import AlertState
from app.controllog.events import AnyControlEvent, Claim, Drain, Moving, OperatorAct, Paused, RolePut
from spark.dashboard import decode, frames, summary, timeline
from spark.dashboard.page import page
from spark.dashboard.store import STATE, files_of
from spark.dashboard.summary import summarize
from spark.dashboard.timeline import MOST_CHARS
from tests.spark.conftest import HOUR_MS, NOON_MS
from tests.spark.regions import WIDTH_MS, Region, act, audit_plan, incident, run_of, window, workload
from tests.spark.test_dashboard import NOW_MS, entries, report, take, two_regions

EVIL = "<script>alert(1)</script>"
TimelineRow = tuple[str, str, int, int | None, str, str]


def rows_of(rows: list[dict[str, Any]], *kinds: str) -> list[TimelineRow]:
    """Kind, region, start and end in ms since noon, text and actor of the rows of these kinds."""
    return [
        (one["kind"], one["region"], one["from_ms"] - NOON_MS,
         None if one["until_ms"] is None else one["until_ms"] - NOON_MS, one["what"], one["who"])
        for one in rows
        if one["kind"] in kinds
    ]  # fmt: skip


def alert(at_ms: int, state: Any, **given: Any) -> AlertState:
    """An alert about lost orders."""
    tiers = {"topic": "orders", "from_tier": "regional", "to_tier": "aggregate"}
    since = {"since_ms": NOON_MS, "fired_ms": NOON_MS + 5, **given}
    return AlertState(at_ms=at_ms, id="a.1", term=1, state=state, rule="lost", **tiers, **since)


def role(at_ms: int, state: Any) -> RolePut:
    """A role that moves billing/orders to the west."""
    return RolePut(
        at_ms=at_ms, key="billing/orders", region="west", epoch=3, state=state, previous="east", actor="ann"
    )


def put(region: Region, *events: AnyControlEvent) -> None:
    for offset, event in enumerate(events, 100):
        region.put("activity", f"{offset:05}", act(offset, event))


@pytest.mark.deep(minutes=0.1)
def test_failovers_roles_and_alerts_have_their_start_and_end(session: SparkSession, tmp_path: Path) -> None:
    east, west = Region("east"), Region("west")
    roles = role(NOON_MS + 20, "moving"), role(NOON_MS + 30, "active")
    put(
        east,
        alert(NOON_MS + 5, "firing"),
        alert(NOON_MS + 70, "resolved", resolved_ms=NOON_MS + 70),
        *roles,
        Claim(at_ms=NOON_MS + 2, worker="w-1", term=4),
        OperatorAct(at_ms=NOON_MS + 3, subject="billing/orders", action="skip", detail="7", actor="bob"),
    )
    put(west, *roles, run_of("planned", NOON_MS + 10), run_of("executing", NOON_MS + 15))
    for region in (east, west):
        take(session, tmp_path, region)
    found = report(session, tmp_path)["timeline"]
    assert rows_of(found, *timeline.KINDS) == [
        ("role", "west", 20, 30, "billing/orders is active in west instead of east, epoch 3", "ann"),
        ("failover", "west", 10, None, "f-1 to west: executing: drill", "ann"),
        ("operator", "east", 3, 3, "billing/orders: skip 7", "bob"),
        ("leader", "east", 2, 2, "claims term 4", "w-1"),
        ("alert", "east", 0, 70, "lost: orders, regional to aggregate: resolved", ""),
    ]


@pytest.mark.deep(minutes=0.5)
def test_an_alert_that_never_fired_is_not_shown_and_a_firing_one_has_no_end(
    session: SparkSession, tmp_path: Path
) -> None:
    east = Region("east")
    put(east, alert(NOON_MS + 5, "pending", fired_ms=0))
    take(session, tmp_path, east)
    assert report(session, tmp_path)["timeline"] == []
    put(east, alert(NOON_MS + 5, "firing"))
    take(session, tmp_path, east)
    week_later = NOON_MS + 8 * 24 * HOUR_MS
    report(session, tmp_path)
    later = summarize(session, tmp_path, week_later, week_later + HOUR_MS, week_later)["timeline"]
    assert rows_of(later, "alert") == [
        ("alert", "east", 0, None, "lost: orders, regional to aggregate: firing", "")
    ]
    before = summarize(session, tmp_path, NOON_MS - HOUR_MS, NOON_MS, NOW_MS)["timeline"]
    assert before == []


@pytest.mark.deep(minutes=0.2)
def test_incidents_of_each_region_are_shown_once_and_outlive_their_topic(
    session: SparkSession, tmp_path: Path
) -> None:
    east, west = Region("east"), Region("west")
    for number in range(3):
        east.incident(incident(NOON_MS + number, "log-truncated"))
    west.incident(incident(NOON_MS, "route-halted", message=""))
    while take(session, tmp_path, east, limit=2).offsets:
        pass
    take(session, tmp_path, west)
    recreated = Region("east")  # the topic was recreated: its offsets belong to other incidents
    recreated.incident(incident(NOON_MS + 9, "copy-differs"))
    take(session, tmp_path, recreated, topic_id="id-2")
    found = rows_of(report(session, tmp_path)["timeline"], "incident")
    assert found == [
        ("incident", "east", 9, 9, "copy-differs: orders: it is shorter; look", "w-1"),
        *(
            ("incident", "east", at, at, "log-truncated: orders: it is shorter; look", "w-1")
            for at in (2, 1, 0)
        ),
        ("incident", "west", 0, 0, "route-halted: orders: ; look", "w-1"),
    ]
    before = summarize(session, tmp_path, NOON_MS - HOUR_MS, NOON_MS, NOW_MS)
    assert before["timeline"] == []


@pytest.mark.deep(minutes=0.2)
def test_an_incident_and_its_end_are_one_row_and_an_open_one_has_no_known_end(
    session: SparkSession, tmp_path: Path
) -> None:
    east, lasting = Region("east"), replace(incident(NOON_MS, "fetch-trouble"), lasts=True)
    stopped = replace(lasting, at_ms=NOON_MS + 5)
    records = (
        lasting, replace(lasting, ended_ms=NOON_MS + 12_000), lasting,  # written again
        replace(stopped, ended_ms=NOON_MS + 7, ended_why="its worker stopped"), stopped,
        replace(lasting, at_ms=NOON_MS + 20_000),
        replace(lasting, ended_ms=2**62),
    )  # fmt: skip
    for record in records:
        east.incident(record)
        assert take(session, tmp_path, east).offsets == 1
    found = report(session, tmp_path)
    words = "fetch-trouble: orders: it is shorter; look"
    assert rows_of(found["timeline"], "incident") == [
        ("incident", "east", 20_000, None, words, "w-1"),
        ("incident", "east", 5, 7, f"{words}; its worker stopped", "w-1"),
        ("incident", "east", 0, 12_000, words, "w-1"),
    ]
    assert "no end known" in page(found)
    assert [row["table"] for row in found["quarantine"]] == ["incidents"]


@pytest.mark.deep(minutes=0.3)
def test_a_bad_incident_is_quarantined_and_an_evil_one_is_escaped_and_bounded(
    session: SparkSession, tmp_path: Path
) -> None:
    east = Region("east")
    east.incident(b"{")
    east.incident(incident(-5, "past"))
    east.incident(incident(2**62, "future"))
    east.incident(incident(NOON_MS, "evil", message=f"\x1b[2J\u202e\n{EVIL}" + "x" * 100_000))
    east.put("activity", "00100", b'{"event": "role-put", "offset": 100, "at_ms": %d}' % NOON_MS)
    done = take(session, tmp_path, east)
    assert (done.offsets, done.quarantined) == (5, 4)
    found = report(session, tmp_path)
    assert {(row["table"], row["reason"].split(":")[0]) for row in found["quarantine"]} == {
        ("incidents", "the value is not a incident"),
        ("incidents", "the value is not an incident"),
        ("activity", "the value is not a control event"),
    }
    (one,) = found["timeline"]
    assert len(one["what"]) == MOST_CHARS
    assert one["what"].isprintable()
    html = page(found)
    assert "&lt;script&gt;" in html
    assert EVIL not in html


@pytest.mark.deep(minutes=0.6)
def test_consecutive_windows_of_one_state_are_one_row(session: SparkSession, tmp_path: Path) -> None:
    east, west = two_regions()
    for number, count in ((3, 9), (5, 8), (6, 12)):  # lossy with the second, apart, and too many
        start_ms = NOON_MS + number * WIDTH_MS
        east.window("orders", "regional", "east-regional", start_ms, window(10, position=number))
        west.window("orders", "aggregate", "west-aggregate", start_ms, window(count, position=number))
    west.window("orders", "aggregate", "west-aggregate", NOON_MS + 2 * WIDTH_MS, window(9, position=9))
    for region in (east, west):
        take(session, tmp_path, region)
    prefix = "orders, regional to aggregate: "
    assert rows_of(report(session, tmp_path)["timeline"], "audit") == [
        ("audit", "west", 6 * WIDTH_MS, 7 * WIDTH_MS, f"{prefix}duplicated, 2 extra, 1 window",
         "billing-team"),
        ("audit", "west", 5 * WIDTH_MS, 6 * WIDTH_MS, f"{prefix}lossy, 2 missing, 1 window", "billing-team"),
        ("audit", "west", WIDTH_MS, 4 * WIDTH_MS, f"{prefix}lossy, 5 missing, 3 windows", "billing-team"),
    ]  # fmt: skip
    for region in (east, west):
        region.put("audit_plans", "audit:all", audit_plan(tiers=["regional", "aggregate", "consumer"]))
        take(session, tmp_path, region)
    absent = [one for one in rows_of(report(session, tmp_path)["timeline"], "audit") if "absent" in one[4]]
    assert [(one[1], one[2], one[3]) for one in absent] == [
        ("east", 5 * WIDTH_MS, 7 * WIDTH_MS), ("west", 5 * WIDTH_MS, 7 * WIDTH_MS),
        ("east", 0, 4 * WIDTH_MS), ("west", 0, 4 * WIDTH_MS),
    ]  # fmt: skip


@pytest.mark.deep(minutes=0.2)
def test_the_newest_events_of_a_flood_are_shown_and_the_others_counted(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summary, "MOST_EVENTS", 2)
    monkeypatch.setattr(summary, "MOST_REASONS", 1)
    east = Region("east")
    for number in range(5):
        east.incident(incident(NOON_MS + number, "flood"))
    put(east, run_of("done", NOON_MS))
    for bad in (b"{", b"[", b"["):
        east.incident(bad)
    take(session, tmp_path, east)
    found = report(session, tmp_path)
    assert [one["from_ms"] - NOON_MS for one in found["timeline"]] == [4, 3, 0]
    assert found["cut"] == {"timeline": 3, "quarantine": 1}
    assert [row["count"] for row in found["quarantine"]] == [2]
    html = page(found)
    assert "3 older rows are not shown" in html
    assert "Quarantine: 3 records" in html


def rows_of_acts(session: SparkSession, *acts: tuple[str, int, AnyControlEvent, bool]) -> list[TimelineRow]:
    """The timeline's rows of acts. An act: region, offset, event, and whether the log accepted it."""
    rows = [
        (region, decode.ACTIVITY, f"{offset:020}", offset,
         codec.activity_entry(offset, event, counted=counted)[1])
        for region, offset, event, counted in acts
    ]  # fmt: skip
    names = "region string, table string, key string, position long, value binary"
    found = frames.happened(session.createDataFrame(rows, names)).collect()
    return rows_of(
        timeline.in_order(map(timeline.event_row, (one.asDict() for one in found))), *timeline.KINDS
    )


def test_an_event_that_the_log_refused_is_shown_as_refused_and_changes_no_episode(
    session: SparkSession,
) -> None:
    of_deposed_leader = alert(NOON_MS + 70, "resolved", resolved_ms=NOON_MS + 70)  # from a deposed leader
    of_east = role(NOON_MS + 90, "active")
    found = rows_of_acts(
        session,
        ("east", 1, Claim(at_ms=NOON_MS + 1, worker="w-1", term=4), True),
        ("east", 2, Claim(at_ms=NOON_MS + 2, worker="w-2", term=4), False),
        ("east", 3, alert(NOON_MS + 5, "firing"), True),
        ("east", 4, of_deposed_leader, False),
        ("east", 5, run_of("done", NOON_MS + 80), True),
        ("east", 6, run_of("aborted", NOON_MS + 85), False),
        ("east", 7, of_east, False),
    )
    assert found == [
        ("role", "east", 90, 90,
         "refused: billing/orders is active in west instead of east, epoch 3", "ann"),
        ("failover", "east", 85, 85, "refused: f-1 to west: aborted: drill", "ann"),
        ("failover", "east", 80, 80, "f-1 to west: done: drill", "ann"),
        ("alert", "east", 70, 70, "refused: lost: orders, regional to aggregate: resolved", ""),
        ("leader", "east", 2, 2, "refused: claims term 4", "w-2"),
        ("leader", "east", 1, 1, "claims term 4", "w-1"),
        ("alert", "east", 0, None, "lost: orders, regional to aggregate: firing", ""),
    ]  # fmt: skip


@pytest.mark.deep(minutes=0.1)
def test_a_role_that_never_became_active_ends_when_a_higher_epoch_begins(session: SparkSession) -> None:
    back = RolePut(at_ms=NOON_MS + 50, key="billing/orders", region="east", epoch=64, state="active")
    other = RolePut(at_ms=NOON_MS + 30, key="mail/letters", region="east", epoch=64, state="active")
    refused = RolePut(at_ms=NOON_MS + 40, key="billing/orders", region="east", epoch=9, state="active")
    moving = "billing/orders becomes active in west instead of east, epoch 3"

    def moved(*more: tuple[str, int, AnyControlEvent, bool]) -> list[int | None]:
        acts = [(region, 1, role(NOON_MS + 20, "moving"), True) for region in ("east", "west")]
        return [until for _, _, _, until, what, _ in rows_of_acts(session, *acts, *more) if what == moving]

    unrelated = ("east", 2, other, True), ("east", 3, refused, False)
    assert moved(*unrelated) == [None]
    twin = RolePut(at_ms=NOON_MS + 60, key="billing/orders", region="east", epoch=3, state="active")
    assert moved(*unrelated, ("north", 5, twin, True)) == [None], "a role of the same epoch ended the episode"
    assert moved(*unrelated, ("east", 4, back, True)) == [50]


def test_events_of_a_recreated_log_do_not_replace_older_ones_at_the_same_offsets(
    session: SparkSession,
) -> None:
    drains = [Drain(at_ms=NOON_MS + at, worker="w-1", draining=True, actor="ann") for at in (0, 7)]
    found = rows_of_acts(session, *(("east", 5, one, True) for one in drains))
    assert [(from_ms, until_ms) for _, _, from_ms, until_ms, *_ in found] == [(7, 7), (0, 0)]


def test_an_absent_audit_is_no_loss(session: SparkSession) -> None:
    def verdict(number: int, state: str, missing: int, absent: str = "") -> tuple[Any, ...]:
        start_ms = NOON_MS + number * WIDTH_MS
        tiers = ("regional", "aggregate", "", state, 10, 10 - missing)
        rest = ("count", absent, None, 0, True, "")
        return ("2025-11-22", "west", "orders", start_ms, WIDTH_MS, *tiers, missing, 0, *rest)

    rows = [verdict(0, "lossy", 2), verdict(1, "absent-audit", 9, "aggregate"), verdict(2, "corrupted", -1)]
    verdicts = session.createDataFrame(rows, frames.VERDICT)
    runs = sorted(
        timeline.audit_row(one.asDict(), [])["what"] for one in frames.audit_runs(verdicts).collect()
    )
    prefix = "orders, regional to aggregate: "
    assert runs == [
        f"{prefix}absent-audit, no report from: aggregate, 1 window", f"{prefix}corrupted, 1 window",
        f"{prefix}lossy, 2 missing, 1 window",
    ]  # fmt: skip
    assert [one["state"] for one in summary.worst_windows(verdicts)] == ["lossy", "absent-audit", "corrupted"]


@pytest.mark.parametrize(
    ("event", "what", "until_ms"),
    [
        (run_of("planned", NOON_MS), "f-1 to west: planned: drill", None),
        (run_of("planned", NOON_MS, expires_ms=NOON_MS + 9), "f-1 to west: planned: drill", NOON_MS + 9),
        (run_of("executing", NOON_MS, expires_ms=NOON_MS + 9), "f-1 to west: executing: drill", None),
        (run_of("planned", NOON_MS, expires_ms=2**52), "f-1 to west: planned: drill", decode.LATEST_MS),
        (run_of("aborted", NOON_MS), "f-1 to west: aborted: drill", NOON_MS),
        (role(NOON_MS, "moving"), "billing/orders becomes active in west instead of east, epoch 3", None),
        (Drain(at_ms=NOON_MS, worker="w-1", draining=True, actor="ann"), "w-1 is drained", NOON_MS),
        (Paused(at_ms=NOON_MS, key="a/b", partition=3, paused=False, actor="ann"),
         "a/b, partition 3 is resumed", NOON_MS),
        (Paused(at_ms=NOON_MS, key="a/b", partition=-1, paused=True, actor="ann"), "a/b is paused", NOON_MS),
        (Moving(at_ms=NOON_MS, key="a/b", move="m", to="east-2", actor="ann"), "a/b is moved to east-2",
         NOON_MS),
        (alert(NOON_MS, "gone"), "lost: orders, regional to aggregate: gone", NOON_MS),
    ],
)  # fmt: skip
def test_the_timeline_has_a_text_and_an_end_for_each_event(
    event: AnyControlEvent, what: str, until_ms: int | None
) -> None:
    found = timeline.event("east", decode.ACTIVITY, "k", 1, act(1, event))
    assert found is not None
    assert (found.what, found.until_ms) == (what, until_ms)


def test_a_deployment_is_not_on_the_timeline() -> None:
    value = act(1, workload("billing", "orders"))
    assert timeline.event("east", decode.ACTIVITY, "k", 1, value) is None


def test_times_of_an_alert_that_no_column_holds_are_bounded() -> None:
    value = act(1, alert(NOON_MS, "firing", since_ms=-(2**63)))
    found = timeline.event("east", decode.ACTIVITY, "k", 1, value)
    assert found is not None
    assert found.from_ms == 0


def test_each_incident_has_a_key_of_its_own(session: SparkSession, tmp_path: Path) -> None:
    east = Region("east")
    for _ in range(2):
        east.incident(incident(NOON_MS, "twice"))
    take(session, tmp_path, east)
    stored = entries(session, tmp_path, "east")
    assert len([key for table, key in stored if table == "incidents"]) == 2
    assert all(codec.incident(bytes(value)).kind == "twice" for value in stored.values())
    files = files_of(Archive.open(tmp_path / "east").state(), STATE)
    assert {file.date for file in files} == {"2025-11-22"}
