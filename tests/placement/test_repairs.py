"""When compaction erases an event because a record that does not count took its key, the leader writes it
again.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.controllog import codec
from app.controllog.events import (
    ALL,
    AnyControlEvent,
    Assignment,
    Claim,
    Drain,
    LimitShares,
    MoveWish,
    Moving,
    Paused,
    Released,
    RolePut,
    RoutePut,
    StartRecorded,
    WorkloadPut,
    compaction_key,
    deletion_of,
)
from app.controllog.log import ControlLog
from app.controllog.state import ControlState
from app.kernel.job import JobId, Kind
from app.placement.repairs import repairs

KEYS = {"g/t": WorkloadPut, "r": RoutePut}
JOBS = [str(JobId(Kind.DISPATCH, "g/t", "t", partition)) for partition in range(2)]
WORKERS = ["a", "b"]
ACTS = [
    "claim", "assign", "assign", "release", "ask", "put", "put", "delete", "pause", "resume", "drain", "wish",
    "move", "begin", "divide", "role",
]  # fmt: skip


class Region:
    """A control log, and the events that honest workers write into it."""

    def __init__(self) -> None:
        self.log = ControlLog("control", {})
        self.log._tail.caught_up.set()
        self.written: list[AnyControlEvent] = []
        self.end = 0

    @property
    def view(self) -> ControlState:
        return self.log.view

    def write(self, *events: AnyControlEvent) -> None:
        self.log._tail._positioned = True
        records: list[Any] = [
            SimpleNamespace(offset=self.end + at, value=codec.encode(event), key=None)
            for at, event in enumerate(events)
        ]
        self.written, self.end = self.written + list(events), self.end + len(events)
        self.log._on_records(records)
        self.log._tail.next_offset = self.end
        for key in list(self.view.stale):  # as `ControlLog.drop_stale` does it
            self.written = [one for one in self.written if compaction_key(one) != key]
            self.view.dropped(key)
            self.log._last.pop(key, None)

    def act(self, name: str, number: int) -> None:
        """Runs one act; `number` chooses its job, worker, key and partition."""
        view, job, worker = self.view, JOBS[number % 2], WORKERS[number // 2 % 2]
        key = list(KEYS)[number % 2]
        current = view.workloads.get(key) or view.routes.get(key)
        held, at = view.assignments.get(job), self.end
        partition = number % 3 - 1
        match name:
            case "claim":
                self.write(Claim(at_ms=0, term=view.term + 1, worker=worker))
            case "assign" if view.term:
                self.write(self.assignment(job, worker))
            case "ask" if held is not None and held.worker:
                self.write(msgspec.structs.replace(held, release=True, term=view.term))
            case "release" if held is not None and held.worker:
                self.write(Released(at_ms=0, job=job, worker=held.worker, epoch=held.epoch))
            case "put":
                made: Any = KEYS[key](at_ms=0, key=key, definition={}, etag=f"e{at}", actor="me")
                self.write(view.replacing(made, f"d{at}"))
            case "delete" if current is not None:
                self.write(deletion_of(current)(at_ms=0, key=key, actor="me", expected=current.etag))
            case "pause" | "resume":
                is_on = name == "pause"
                self.write(Paused(at_ms=0, key="g/t", partition=partition, paused=is_on, actor="me"))
            case "drain":
                self.write(Drain(at_ms=0, worker=worker, draining=number % 2 == 0, actor="me"))
            case "wish":
                self.write(MoveWish(at_ms=0, job=job, worker=worker, epoch=view.floor.get(job, 0), actor="m"))
            case "move" if "g/t" in view.workloads:
                self.write(Moving(at_ms=0, key="g/t", move=f"m{at}", to="west", actor="me"))
            case "begin" if current is not None and not view.start_parts_of(key):
                deployment = current.deployment
                self.write(StartRecorded(at_ms=0, key=key, deployment=deployment, nonce=f"n{at}", ends=[at]))
            case "divide" if view.term:
                divided = view.limits.get("g/t")
                number, term = 1 if divided is None else divided[0].number + 1, view.term
                self.write(LimitShares(at_ms=0, key="g/t", term=term, number=number, slots=at, grants={}))
            case "role":
                self.write(RolePut(at_ms=0, key="g/t", region="east", epoch=at, state="active"))

    def assignment(self, job: str, worker: str) -> Assignment:
        epoch, term = self.view.next_epoch(job), self.view.term
        return Assignment(at_ms=0, job=job, worker=worker, epoch=epoch, term=term, reason="")

    def repair(self, erased: set[str]) -> list[AnyControlEvent]:
        """The events that a leader writes once records that do not count have taken these keys."""
        before = len(self.written)
        for key in erased:
            self.log._cover(key.encode(), self.end)
        self.log._tail.next_offset = self.end + 1
        taken = self.log.take_erased()
        if any(isinstance(event, Claim) and event.term == self.view.term for event in taken):
            self.write(Claim(at_ms=0, term=self.view.term + 1, worker=self.view.leader))
        self.write(*repairs(self.view, taken, self.view.term))
        return self.written[before:]


def fold(events: list[AnyControlEvent]) -> ControlState:
    state = ControlState()
    for offset, event in enumerate(events):
        state.next_offset = offset + 1
        state.apply(event)
    return state


def known(state: ControlState) -> dict[str, Any]:
    """The part of the state that workers act on."""
    return {
        "leader": state.leader,
        "defined": {key: (put.etag, put.deployment)
                    for key, put in [*state.workloads.items(), *state.routes.items()]},
        "owned": {job: (held.worker, held.epoch, held.release) for job, held in state.assignments.items()
                  if held.worker},
        "paused": state.paused,
        "moves": {key: move.move for key, move in state.moves.items()},
        "draining": set(state.draining),
        "wishes": {job: wish.worker for job, wish in state.wishes.items()},
        "begun": [state.start_parts_of(key) for key in KEYS],
        "limits": {key: shares.slots for key, (shares, _) in state.limits.items()},
        "roles": list(state.roles),
    }  # fmt: skip


@pytest.mark.property
@given(st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 11)), max_size=30), st.data())
def test_after_any_erasure_the_remaining_log_and_the_repairs_give_the_same_state(
    acts: list[tuple[str, int]], data: st.DataObject
) -> None:
    region = Region()
    region.act("claim", 0)
    for name, number in acts:
        region.act(name, number)
    before, keys = known(region.view), sorted({compaction_key(event) for event in region.written})
    erased = data.draw(st.sets(st.sampled_from(keys)))
    kept = [event for event in region.written if compaction_key(event) not in erased]
    written = region.repair(erased)
    assert known(region.view) == before, "a worker that has read the whole log sees no change"
    fresh = fold(kept + written)
    assert known(fresh) == before
    for job, held in region.view.assignments.items():
        assert fresh.next_epoch(job) > held.epoch, "no epoch is given twice"
    assert region.repair(set()) == []


def test_only_a_keys_current_event_is_written_again_and_once() -> None:
    region = Region()
    region.act("claim", 0)
    region.act("put", 0)
    assert region.repair({"workload/other", "claim/7/evil", "\ufffd"}) == []
    assert len(region.repair({"workload/g/t"})) == 1
    region.log._cover(b"workload/g/t", 1)  # noticed late: the log already has the repair after it
    assert region.log.take_erased() == []
    region.log._cover(b"workload/g/t", 9)
    assert region.log.take_erased() == [], "the log was not read that far yet"
    region.log._tail.next_offset = 10
    taken = region.log.take_erased()
    region.log.erase_again(taken)
    assert region.log.take_erased() == taken


def test_a_flood_of_keys_takes_no_memory_and_hides_nothing() -> None:
    region = Region()
    region.act("put", 0)
    region.log._cover(b"workload/g/t", 1)
    for number in range(100_000):
        region.log._cover(b"k%d" % number, number + 2)
        if number % 500 == 0:
            region.log._on_position(number)
    region.log._tail.next_offset = 200_001
    region.log._cover(b"x" * 1_000_000, 200_000)
    assert len(region.log._covered) < 2_000
    assert [compaction_key(event) for event in region.log.take_erased()] == ["workload/g/t"]


def test_a_pause_of_all_is_repaired_with_what_it_would_end() -> None:
    region = Region()
    for name, number in (("put", 0), ("pause", 0), ("pause", 2), ("move", 0)):
        region.act(name, number)
    written = region.repair({f"paused/g/t/{ALL}"})
    assert [type(event).__name__ for event in written] == ["Paused", "Paused", "Moving"]
