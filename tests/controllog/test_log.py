"""The worker's own copy of the control log, which keeps a bounded memory."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import orjson

from app.controllog import codec
from app.controllog.alert_state import AlertState, LastNotice
from app.controllog.events import (
    AnyControlEvent,
    Assignment,
    Claim,
    LimitShares,
    StartRecorded,
    WorkloadDeleted,
    WorkloadPut,
    compaction_key,
)
from app.controllog.leader_reports import as_leader
from app.controllog.log import ControlLog
from app.controllog.state import ControlState
from app.kafka.fetch import bounded_consumer
from app.kernel.limit_shares import WHOLE, LimitGrant
from tests.kafka.conftest import ENOUGH_S, connected, create, producing
from tests.web.runtime_fake import definition, put

JOB = "dispatch:g/t:t:{}"


def claim(term: int) -> Claim:
    return Claim(at_ms=0, term=term, worker="a")


def assign(partition: int, term: int, *, job: str = "") -> Assignment:
    return Assignment(at_ms=0, job=job or JOB.format(partition), worker="a", epoch=1, term=term, reason="")


def log_of(*events: AnyControlEvent) -> ControlLog:
    """A log that has caught up and then read these events."""
    log = ControlLog("control", {})
    log._tail.caught_up.set()
    deliver(log, dict(enumerate(events)))
    return log


def deliver(log: ControlLog, events: dict[int, AnyControlEvent]) -> bool:
    """Delivers records at these offsets. Returns whether the log reads on; False: it starts over."""
    log._tail._positioned = True
    records: list[Any] = [
        SimpleNamespace(offset=offset, value=codec.encode(event)) for offset, event in events.items()
    ]
    log._on_records(records)
    return log._tail._positioned


def test_records_that_cannot_be_read_are_not_taken_for_compaction() -> None:
    """Each would otherwise make the log start over."""
    log = log_of(claim(1), claim(2))
    bounded_consumer._passed_over["control", 0].extend([(4, 9), (2, 4)])
    try:
        assert deliver(log, {9: claim(3)}), "it goes on"
        assert not deliver(log, {11: claim(4)}), "compaction took offset 10"
    finally:
        bounded_consumer._passed_over.clear()


def test_refused_assignments_are_remembered_once_a_job_for_the_leader_to_repair() -> None:
    stale = [assign(n % 3, 1) for n in range(5_000)]
    log = log_of(claim(1), *(assign(n, 1) for n in range(3)), claim(2), *stale)
    assert [event.job for event in log.take_refused()] == [JOB.format(n) for n in (0, 1, 2)]
    assert log.take_refused() == []


def test_refused_assignments_of_unknown_jobs_are_not_kept() -> None:
    log = log_of(claim(1), *(assign(0, 1, job=f"x{n}") for n in range(5_000)), assign(1, 9))
    assert log.view.refused == 5_001
    assert log.take_refused() == []


def test_a_refused_event_needs_no_repair_once_a_later_one_counts() -> None:
    late = assign(0, 1)
    assert (
        log_of(claim(1), late, claim(2), late, msgspec.structs.replace(late, epoch=2, term=2)).take_refused()
        == []
    )
    log = log_of(claim(1), late, claim(2), late)
    taken = log.take_refused()
    log.refuse_again(taken)
    assert log.take_refused() == taken


def test_shares_of_limits_that_were_refused_are_kept_for_the_leader_to_repair() -> None:
    """Compaction keeps a key's last record, which here is one that no reader counts."""
    grant = {"a": LimitGrant(parts=WHOLE, slots=1, most_parts=WHOLE, most_slots=1)}
    first = LimitShares(at_ms=0, key="g/t", term=1, number=1, slots=1, grants=grant)
    late = msgspec.structs.replace(first, number=2)
    log = log_of(put(definition("g", "t")), claim(1), first, claim(2), late)
    assert log.take_refused() == [late]
    assert "limit-shares" not in {event["event"] for event in log.recent}


def test_bookkeeping_is_not_shown_as_activity() -> None:
    data = definition("g", "t")
    log = log_of(put(data), StartRecorded(at_ms=0, key="g/t", ends=[1] * 1_000))
    assert [start.ends for start in log.view.start_parts_of("g/t")] == [[1] * 1_000]
    assert [event["event"] for event in log.recent] == ["workload-put"]


def alert(term: int, at_ms: int = 5, **overrides: Any) -> AlertState:
    fields: dict[str, Any] = {"state": "firing", "notice": 1, "fired_ms": 5, **overrides}
    return AlertState(
        at_ms=at_ms, id="f00-1", term=term, rule="r", topic="t", from_tier="a", to_tier="b", since_ms=1,
        **fields,
    )  # fmt: skip


def test_alerts_are_activity_when_they_fire_and_when_they_are_resolved() -> None:
    over = alert(1, 9, state="resolved", notice=2, resolved_ms=9)
    gone = alert(1, 99, state="gone", resolved_ms=9)
    log = log_of(claim(1), alert(1), alert(1, 7, told={"c": LastNotice(1, 6)}), over, gone)
    assert [(event["event"], event.get("state")) for event in log.recent] == [
        ("claim", None), ("alert-state", "firing"), ("alert-state", "resolved"),
    ]  # fmt: skip
    assert log.view.alert_states.states == {}


def test_an_alert_that_is_gone_while_it_fires_is_activity() -> None:
    """As when its rule is deleted: without this event, the activity would show it as firing for ever."""
    fired = {"state": "gone", "fired_ms": 5}
    log = log_of(claim(1), alert(1), alert(1, 9, **fired), alert(1, 99, resolved_ms=9, **fired))
    assert [event["state"] for event in log.recent if event["event"] == "alert-state"] == ["firing", "gone"]


def test_a_deposed_leaders_alert_is_remembered_for_the_repair() -> None:
    log = log_of(claim(1), claim(2), alert(2), alert(1, state="gone"))
    assert log.refused_alerts == {"f00-1"}
    assert log.view.alert_states.states == {"f00-1": alert(2)}
    assert log.take_refused() == []


def changes() -> list[WorkloadPut]:
    """A definition and two changes, each based on the one before."""
    state, found = ControlState(), list[WorkloadPut]()
    for n in range(3):
        change = msgspec.structs.replace(put(definition("g", "t")), etag=f"e{n}")
        found.append(state.replacing(change, "one"))
        assert state.apply(found[-1])
    return found


def test_a_reader_that_compaction_has_overtaken_reads_the_log_again_and_has_the_current_state() -> None:
    first, _, last = changes()
    log, etags = log_of(claim(1), first), list[str]()
    log.on_change(lambda: etags.append(log.view.workloads["g/t"].etag))
    other = msgspec.structs.replace(last, expected="other")
    assert not deliver(log, {3: last, 4: claim(2), 5: other}), "offset 2 is missing"
    assert deliver(log, {0: claim(1)})
    assert (log.view.workloads["g/t"], etags) == (first, []), "no reader sees half a log"
    assert deliver(log, {3: last, 4: claim(2), 5: other})
    assert (log.view.workloads["g/t"], log.view.term, etags) == (last, 2, [last.etag])
    assert log.take_refused() == [other], "a new conflict is still refused"
    assert [(event["offset"], event["counted"]) for event in log.recent] == [
        (0, True), (1, True), (3, True), (4, True), (5, False)
    ]  # fmt: skip
    assert not deliver(log, {7: claim(3)})


def test_however_much_was_compacted_the_log_is_read_again_once() -> None:
    first, _, last = changes()
    log = log_of(claim(1), first)
    assert not deliver(log, {5: claim(2)})
    log._tail.end = 10
    assert deliver(log, {0: claim(1), 3: last, 5: claim(2), 8: claim(3)})
    assert (log.view.term, log.view.workloads["g/t"]) == (1, first), "the log was not read to its end"
    assert deliver(log, {9: claim(4)})
    assert (log.view.term, log.view.workloads["g/t"]) == (4, last)


def test_a_reader_that_compaction_overtakes_before_it_caught_up_starts_over() -> None:
    first, second, last = changes()
    log = ControlLog("control", {})
    assert deliver(log, {0: first, 2: claim(1)}), "compaction ran before the read"
    assert not deliver(log, {4: last})
    assert deliver(log, {2: claim(1), 4: last, 5: second}), "a change that conflicts then is refused, too"
    assert (log.view.workloads["g/t"], log.view.refused) == (last, 1)
    assert log.take_refused() == []


async def test_the_log_is_read_from_its_start_by_a_reader_that_misses_offsets(
    bootstrap: str, topic_name: str
) -> None:
    log = ControlLog(topic_name, {"bootstrap_servers": bootstrap})
    async with connected(bootstrap) as client:
        await create(client, topic_name)
        await log.start()
        try:
            first, second, _ = changes()
            key, at = compaction_key(first).encode(), (topic_name, 0)
            async with producing(bootstrap, transactional_id=topic_name) as producer, producer.transaction():
                await producer.send_and_wait(topic_name, codec.encode(first), key, partition=0)
            async with asyncio.timeout(
                ENOUGH_S
            ):  # a transaction's end marker has an offset that no reader gets
                while await client.end_offsets([at]) != {at: 2}:  # noqa: ASYNC110 - no event tells
                    await asyncio.sleep(0.02)
            before = await log.up_to(0)
            last = await log.append(second)
            view = await log.up_to(last)
        finally:
            await log.stop()
    assert (before.workloads["g/t"], view.workloads["g/t"]) == (first, second)
    assert view is log.view is not before


async def test_a_claim_that_leaves_no_room_is_refused_and_an_honest_one_leads_for_every_reader(
    bootstrap: str, topic_name: str
) -> None:
    options = {"bootstrap_servers": bootstrap}
    async with connected(bootstrap) as client:
        await create(client, topic_name)
    log, other = ControlLog(topic_name, options), ControlLog(topic_name, options)
    await log.start()
    try:
        await log.append(claim(1), claim((1 << 63) - 1))
        assert (log.view.term, log.view.refused) == (1, 1)
        assert f"claim/{(1 << 63) - 1}/a at offset 1" in log.take_jump()
        assert log.take_jump() == ""
        await log.append(claim(1 << 32))  # nearly the highest term that counts
        await log.append(claim(log.view.term + 1))
        assert log.view.term == (1 << 32) + 1
        await other.start()
        assert (other.view.term, other.view.leader) == (log.view.term, log.view.leader)
        assert other.take_jump() == "", "it was reported when it arrived"
    finally:
        await log.stop()
        await other.stop()


async def test_the_start_positions_of_an_ended_deployment_leave_the_log(
    bootstrap: str, topic_name: str
) -> None:
    options = {"bootstrap_servers": bootstrap}
    async with connected(bootstrap) as client:
        await create(client, topic_name)
    log, other = ControlLog(topic_name, options), ControlLog(topic_name, options)
    await log.start()
    try:
        first = log.view.replacing(put(definition("g", "t")), "one")
        start = StartRecorded(at_ms=0, key="g/t", deployment="one", nonce="n", ends=[5])
        await log.append(first, start)
        assert log.view.start_of("g/t") == start
        await log.append(WorkloadDeleted(at_ms=0, key="g/t", actor="me", expected=first.etag))
        assert list(log.view.stale) == [compaction_key(start)]
        await log.drop_stale()
        assert not log.view.stale
        await other.start()  # it reads records that compaction has not dropped yet
        assert (list(other.view.stale), other.view.start_of("g/t")) == ([], None)
        assert other._tail.next_offset == 4
    finally:
        await log.stop()
        await other.stop()


def test_the_activity_table_is_a_ring_of_the_latest_events_with_their_offsets() -> None:
    rows = dict(codec.activity_entry(offset, claim(offset)) for offset in range(25_000))
    assert len(rows) == codec.ACTIVITY_KEEP
    events = [orjson.loads(value) for value in rows.values()]
    assert {row["offset"] for row in events} == set(range(25_000 - codec.ACTIVITY_KEEP, 25_000))
    assert all(row["offset"] == row["term"] and row["event"] == "claim" for row in events)
    assert all(row["counted"] for row in events)
    assert orjson.loads(codec.activity_entry(1, claim(1), counted=False)[1])["counted"] is False


def test_what_the_leader_reports_ends_when_another_worker_leads() -> None:
    control: Any = SimpleNamespace(view=ControlState(), worker="")
    found: list[Any] = []
    report = as_leader(control, lambda *incident: found.append(incident[4]))
    control.view.leader = "a"
    report("no-worker", "orders", "none may run it", "start one", lambda: False)
    report("no-room", "orders", "they are full", "start one")
    is_over, no_end = found
    assert (is_over(), no_end) == (False, None)
    control.view = ControlState()  # the log is read again, and its leader is not known yet
    assert not is_over()
    control.view.leader = "b"
    assert is_over()
    control.worker = "a"  # it reports late, when it has read that "b" leads
    report("no-worker", "orders", "none may run it", "start one", lambda: False)
    assert found[-1]()
