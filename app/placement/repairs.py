"""What the leader writes again, so that compaction keeps what counts: of each event under whose key a record
stands that does not count (`app.controllog.state`, rule 5; `app.controllog.seals`).

Compaction keeps the last record of a key, valid or not. So the valid one is to be the last, in the words that
make it count for those who read the log from its start, and that change nothing for all others. One thing is
not kept: which of two leaders was the first to record where a deployment begins, when both did.
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
    """For each event what is to be written again; `term` is the leader's own."""
    ordered = sorted(events, key=lambda event: not isinstance(event, MoveWish))  # which are of epochs so far
    return [again for event in ordered for again in _repair(state, event, term)]


def _repair(state: ControlState, event: AnyControlEvent, term: int) -> list[AnyControlEvent]:
    match event:
        case DefinitionPut() | DefinitionDeleted():
            # For what stands, and for nothing that came after: that outlives the refused one by itself.
            if (put := state.standing(event)) is not None:
                return [msgspec.structs.replace(put, expected=put.etag), *_moves(state, event.key)]
            return [  # which ends no pause; the former one did
                deletion_of(event)(at_ms=now_ms(), key=event.key, actor=ACTOR, expected=""),
                *_pauses(state, Paused(at_ms=0, key=event.key, partition=ALL, paused=False, actor=ACTOR)),
            ]
        case Assignment():
            return [_assignment(state, event.job, term)] if event.job in state.assignments else []
        case LimitShares():
            return _shares(state, event.key, term)
        case Claim():  # what was written under a term counts only where its claim is read
            return [
                *(
                    _assignment(state, job, term)
                    for job, valid in state.assignments.items()
                    if valid.term == event.term
                ),
                *(
                    again
                    for key, (shares, _) in list(state.limits.items())
                    if shares.term == event.term
                    for again in _shares(state, key, term)
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
        case FailoverRun() | MoveWish() | Released() | RolePut() | RoleReleased() | StartRecorded():
            return [event]  # which may come twice, and late
        case _:
            return []


def _assignment(state: ControlState, job: str, term: int) -> Assignment:
    """That nobody has it is said under an epoch of its own: readers may know a former owner only."""
    valid = state.assignments[job]
    return msgspec.structs.replace(
        valid, term=term, epoch=valid.epoch if valid.worker else state.next_epoch(job)
    )


def _shares(state: ControlState, key: str, term: int) -> list[AnyControlEvent]:
    if (stands := state.limits.get(key)) is None:
        return []
    return [msgspec.structs.replace(stands[0], term=term, number=stands[0].number + 1)]


def _pauses(state: ControlState, event: Paused) -> list[AnyControlEvent]:
    """The word on all partitions ends those on single ones, and a move: these come behind it."""
    paused = state.paused.get(event.key, set())
    partitions = [event.partition] if event.partition != ALL else [ALL, *sorted(paused - {ALL})]
    again: list[AnyControlEvent] = [
        Paused(at_ms=now_ms(), key=event.key, partition=one, paused=one in paused, actor=ACTOR)
        for one in partitions
    ]
    return [*again, *_moves(state, event.key)] if event.partition == ALL else again


def _moves(state: ControlState, key: str) -> list[AnyControlEvent]:
    """The move that is under way: a definition, or a word on all partitions, would end it."""
    return [state.moves[key]] if key in state.moves else []
