"""The events that the leader writes again, so that compaction keeps them (`app.controllog.state`, rule 5;
`app.controllog.seals`).

Compaction keeps the last record of a key, valid or not. So after a record that does not count, the leader
repeats the valid one, in a form that counts for new readers and changes nothing for others. One fact is lost:
if two leaders recorded where a deployment begins, which of them was first.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from app.controllog.events import (
    ALL,
    AnyControlEvent,
    Assignment,
    Claim,
    DefinitionDeleted,
    DefinitionPut,
    DestinationTopic,
    Drain,
    FailoverRun,
    LimitShares,
    MoveWish,
    Moving,
    Paused,
    Released,
    RolePut,
    RoleReleased,
    StartRecorded,
    deletion_of,
)
from app.controllog.state import ControlState
from app.kernel.clock import now_ms

ACTOR = "repair"


def repairs(state: ControlState, events: Iterable[AnyControlEvent], term: int) -> list[AnyControlEvent]:
    """The events to write again for `events`, under the leader's own `term`."""
    ordered = sorted(events, key=lambda event: not isinstance(event, MoveWish))  # wishes name present epochs
    return [repair for event in ordered for repair in _repair(state, event, term)]


def _repair(state: ControlState, event: AnyControlEvent, term: int) -> list[AnyControlEvent]:
    match event:
        case DefinitionPut() | DefinitionDeleted():
            # Only for the current definition; a later one outlives the refused one by itself.
            if (put := state.standing(event)) is not None:
                return [msgspec.structs.replace(put, expected=put.etag), *_moves(state, event.key)]
            return [  # this deletion ends no pause; the first one did
                deletion_of(event)(at_ms=now_ms(), key=event.key, actor=ACTOR, expected=""),
                *_pauses(state, Paused(at_ms=0, key=event.key, partition=ALL, paused=False, actor=ACTOR)),
            ]
        case Assignment():
            return [_assignment(state, event.job, term)] if event.job in state.assignments else []
        case LimitShares():
            return _shares(state, event.key, term)
        case Claim():  # events of a term count only for readers of its claim
            return [
                *(
                    _assignment(state, job, term)
                    for job, valid in state.assignments.items()
                    if valid.term == event.term
                ),
                *(
                    repair
                    for key, (shares, _) in list(state.limits.items())
                    if shares.term == event.term
                    for repair in _shares(state, key, term)
                ),
            ]
        case Paused():
            return _pauses(state, event)
        case Moving():
            ended = Moving(at_ms=now_ms(), key=event.key, move="", to="", actor=ACTOR)
            return _moves(state, event.key) or [ended]
        case Drain():
            is_on = event.worker in state.draining
            return [Drain(at_ms=now_ms(), worker=event.worker, draining=is_on, actor=ACTOR)]
        case DestinationTopic():
            return [msgspec.structs.replace(event, changes=[])]
        case FailoverRun() | MoveWish() | Released() | RolePut() | RoleReleased() | StartRecorded():
            return [event]  # repeated and late ones are harmless
        case _:
            return []


def _assignment(state: ControlState, job: str, term: int) -> Assignment:
    """The job's assignment. Without a worker it gets a new epoch, because a reader may know a former owner
    only."""
    valid = state.assignments[job]
    return msgspec.structs.replace(
        valid, term=term, epoch=valid.epoch if valid.worker else state.next_epoch(job)
    )


def _shares(state: ControlState, key: str, term: int) -> list[AnyControlEvent]:
    if (stands := state.limits.get(key)) is None:
        return []
    return [msgspec.structs.replace(stands[0], term=term, number=stands[0].number + 1)]


def _pauses(state: ControlState, event: Paused) -> list[AnyControlEvent]:
    """A pause of all partitions ends those of single ones, and a move, so these follow it."""
    paused = state.paused.get(event.key, set())
    partitions = [event.partition] if event.partition != ALL else [ALL, *sorted(paused - {ALL})]
    pauses: list[AnyControlEvent] = [
        Paused(at_ms=now_ms(), key=event.key, partition=one, paused=one in paused, actor=ACTOR)
        for one in partitions
    ]
    return [*pauses, *_moves(state, event.key)] if event.partition == ALL else pauses


def _moves(state: ControlState, key: str) -> list[AnyControlEvent]:
    """The current move, which a definition or a pause of all partitions would end."""
    return [state.moves[key]] if key in state.moves else []
