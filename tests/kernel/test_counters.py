"""Whatever a log holds, a later honest term, epoch and takeover counts, for every reader alike."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.audit.folds.window import WindowRecord
from app.controllog import codec
from app.controllog.events import AnyControlEvent, Assignment, Claim, MoveWish, Released, RolePut
from app.controllog.roles import ACTIVE, FREE_EPOCHS, JUMP, MAX_EPOCH, Roles, next_epoch
from app.controllog.state import ControlState
from app.kernel.counters import HEADROOM, highest
from app.kernel.fencing import SnapshotItem, Snapshots, Takeover, TrackerRecord
from app.kernel.ranges import Snapshot
from app.worker.tracker.fold import TrackerFold
from switchyard.audit.model.fingerprint import Fingerprint
from switchyard.audit.model.totals import Totals

JOB = "dispatch:g/t:t:0"
WORKERS = ["a", "b", "evil"]
REGIONS = ["east", "west"]
numbers = st.one_of(
    st.integers(-2, 5),
    st.integers(HEADROOM - 3, HEADROOM + 12),
    st.sampled_from([1 << 52, (1 << 53) - 1, 1 << 53, (1 << 63) - 2, (1 << 63) - 1]),
)


def claim(term: int, worker: str) -> Claim:
    return Claim(at_ms=0, term=term, worker=worker)


def assign(worker: str, epoch: int, term: int) -> Assignment:
    return Assignment(at_ms=0, job=JOB, worker=worker, epoch=epoch, term=term, reason="")


hostile = st.one_of(
    st.builds(claim, numbers, st.sampled_from(WORKERS)),
    st.builds(assign, st.sampled_from(WORKERS), numbers, numbers),
    st.builds(
        Released, at_ms=st.just(0), job=st.just(JOB), worker=st.sampled_from(WORKERS), epoch=numbers,
        known_epoch=numbers,
    ),
    st.builds(
        MoveWish, at_ms=st.just(0), job=st.just(JOB), worker=st.sampled_from(WORKERS), epoch=numbers,
        actor=st.just("evil"),
    ),
)  # fmt: skip


def fold(log: list[tuple[int, AnyControlEvent]]) -> ControlState:
    """Folds the log as `app.controllog.log` does."""
    state = ControlState()
    for offset, event in log:
        state.next_offset = offset + 1
        state.apply(codec.control_event(codec.encode(event)))
    return state


@given(st.lists(hostile, max_size=30), st.data())
@example([claim((1 << 63) - 1, "evil")], None)
def test_a_later_honest_claim_and_its_assignments_count_after_any_forged_record(
    log: list[AnyControlEvent], data: st.DataObject | None
) -> None:
    written = list(enumerate(log))
    kept = written if data is None else [one for one in written if data.draw(st.booleans())]
    for read in (written, kept):  # the second reader began after a compaction, which may leave any part
        state = fold(read)
        offset = len(log)
        honest = claim(state.term + 1, "honest")
        led = fold([*read, (offset, honest)])
        assert (led.leader, led.term) == ("honest", honest.term)
        given_to = assign("honest", led.next_epoch(JOB), led.term)
        owner = fold([*read, (offset, honest), (offset + 1, given_to)]).owner(JOB)
        assert owner == given_to


@given(st.lists(hostile, max_size=30))
def test_no_term_or_epoch_is_above_what_its_position_allows(log: list[AnyControlEvent]) -> None:
    state = fold(list(enumerate(log)))
    assert state.term <= highest(len(log))
    assert state.next_epoch(JOB) <= highest(len(log)) + 1


@pytest.mark.parametrize(
    "event", [claim(1 << 63, "evil"), assign("evil", HEADROOM + 2, 1), assign("evil", 1, HEADROOM + 2)]
)
def test_a_jump_is_refused_and_known_as_one(event: AnyControlEvent) -> None:
    state = ControlState()
    state.next_offset = 1
    assert state.is_jump(event)
    assert not state.apply(event)
    assert not state.is_jump(claim(1, "a"))


def takeover(epoch: int, worker: str, over: int = -1) -> Takeover:
    return Takeover(job=JOB, epoch=epoch, worker=worker, nonce="n", at_ms=0, over=over)


def saved(epoch: int, worker: str, lineage: int) -> Snapshots:
    item = SnapshotItem(JOB, epoch, Snapshot(lineage & 7).to_bytes(), lineage)
    return Snapshots(worker=worker, at_ms=0, items=[item])


tracker_events = st.one_of(
    st.builds(takeover, numbers, st.sampled_from(WORKERS), numbers),
    st.builds(saved, numbers, st.sampled_from(WORKERS), numbers),
)


@given(st.lists(tracker_events, max_size=20), st.integers(0, 30))
@example([takeover((1 << 63) - 1, "evil"), saved((1 << 63) - 1, "evil", (1 << 63) - 1)], 0)
def test_a_later_honest_takeover_is_granted_after_any_forged_record(
    log: list[Takeover | Snapshots], control_offset: int
) -> None:
    tracker = TrackerFold()
    for offset, event in enumerate(log):
        tracker.apply(event, offset)
    control = ControlState()  # in this region only the tracker topic has forged records
    for _ in range(2 * len(log) + 2):
        epoch = control.next_epoch(JOB)
        answer = tracker.apply(takeover(epoch, "honest"), tracker.next_offset)
        assert answer is not None
        control.next_offset = control_offset = control_offset + 2
        if not answer.granted and answer.known_epoch > highest(control.next_offset):
            answer = tracker.apply(takeover(epoch, "honest", answer.known_epoch), tracker.next_offset)
            assert answer is not None
        if answer.granted:
            break
        control.apply(
            Released(at_ms=0, job=JOB, worker="honest", epoch=epoch, known_epoch=answer.known_epoch)
        )
    assert answer.granted
    tracker.apply(saved(answer.epoch, "honest", answer.lineage + 1), tracker.next_offset)
    record = tracker.record(JOB)
    assert record is not None
    assert record.lineage == answer.lineage + 1


def test_a_takeover_never_gives_way_to_an_older_one_below_what_control_logs_give() -> None:
    tracker = TrackerFold()
    tracker.apply(takeover(7, "a"), 0)
    answer = tracker.apply(takeover(6, "zombie", over=7), 1)
    assert answer is not None
    assert not answer.granted


def test_a_reader_that_begins_after_a_forged_epoch_gave_way_knows_the_later_record() -> None:
    forged = TrackerRecord(epoch=1 << 60, worker="evil", base=5, offset=3)
    later = TrackerRecord(epoch=4, worker="honest", base=9, offset=8)
    for order in ((forged, later), (later, forged)):
        tracker = TrackerFold()
        for record in order:
            tracker.restore(JOB, record)
        assert tracker.owner(JOB) == (4, "honest")


def role(region: str, epoch: int) -> RolePut:
    return RolePut(at_ms=0, key="g/t", region=region, epoch=epoch, state=ACTIVE)


@given(st.lists(st.builds(role, st.sampled_from(REGIONS), numbers), max_size=20))
@example([role("west", MAX_EPOCH - 1)])
def test_a_region_can_become_active_after_any_roles_in_its_log(log: list[RolePut]) -> None:
    roles = Roles()
    for event in log:
        roles.put(event)
    held = roles.of("g/t")
    honest = role("east", next_epoch(-1 if held is None else held.epoch, "east", REGIONS))
    assert roles.put(honest)
    assert roles.of("g/t") == honest


def test_a_role_with_an_impossible_epoch_is_refused() -> None:
    roles = Roles()
    roles.put(role("west", 65))
    assert not roles.put(role("west", FREE_EPOCHS))
    assert roles.put(role("west", FREE_EPOCHS - 1))
    assert not roles.put(role("west", FREE_EPOCHS - 1 + JUMP))
    assert roles.put(role("east", FREE_EPOCHS + 64))


@pytest.mark.parametrize("digits", [b"9" * 19, b" " + b"9" * 25, b"-" + b"9" * 4000])
def test_an_event_with_an_integer_that_others_cannot_read_is_none(digits: bytes) -> None:
    event = b'{"event":"claim","at_ms":0,"worker":"a","term":1}'
    with pytest.raises(codec.BadEvent, match="64 bits"):
        codec.control_event(event.replace(b":0", b":" + digits))


def test_digits_in_a_text_are_no_number() -> None:
    event = claim(1, ":12345678901234567890123")
    assert msgspec.json.decode(codec.encode(event))["worker"] == event.worker
    assert codec.control_event(codec.encode(event)) == event


def test_a_fingerprint_has_64_bits() -> None:
    highest_lane = (1 << 64) - 1
    sums = Fingerprint(highest_lane, highest_lane)
    record = WindowRecord(totals=Totals(count=1, ids=sums, identified=1))
    assert codec.window_record(codec.encode(record)).totals.ids == sums
