"""What the write-ahead log says, and what a process that starts makes of it. Pure.

    Everything  the first frame of a file      Change  every later one: what it names is as it says now

Rules
1. A frame is whole or not there, so counts and the positions up to which they were counted agree.
2. A process never goes on as the incarnation that it finds: it sends that one's numbered reports, ends it
   with a last one of what was kept and not reported, and begins as another. So where the end of a log was
   lost, or a volume was set back, a number stands for the same figures or for fewer, never for others, and
   nothing is counted twice.
3. A position is the next offset of a partition that is to be counted. What is below was counted before,
   unless it is younger than all of that: then the topic is another one of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from switchyard.audit.model.client_counter import ClientAudit, ClientState
from switchyard.audit.model.reports import Report

# Of a partition: what was counted lies below the first, an offset, and has no timestamp above the second, ms.
Position = tuple[int, int]
MOST_WAITING = 10_000  # reports; beyond, those that count nothing are left out
Positions = dict[str, dict[int, Position]]  # topic -> partition -> position


class Everything(msgspec.Struct, frozen=True, omit_defaults=True, tag="everything"):
    """All that is to be known. `backlog`: reports of earlier incarnations that wait."""

    clients: tuple[ClientState, ...] = ()
    backlog: tuple[Report, ...] = ()
    positions: Positions = {}


class WalChange(msgspec.Struct, frozen=True, omit_defaults=True, tag="change"):
    """What is otherwise than the frames before say. `arrived`: ids of reports that left the backlog."""

    clients: tuple[ClientState, ...] = ()
    arrived: tuple[str, ...] = ()
    positions: Positions = {}


class RecoveredState(NamedTuple):
    """What a process that starts has to send, and from where it counts."""

    backlog: tuple[Report, ...]
    positions: Positions


class UnreadableFrames(ValueError):
    """Frames that this version does not know."""


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Everything | WalChange).decode


def read(payloads: Iterable[bytes]) -> Everything:
    """All that the frames of a file say.

    Raises:
        UnreadableFrames: another version wrote them.
    """
    clients: dict[tuple[str, ...], ClientState] = {}
    backlog: dict[str, Report] = {}
    positions: Positions = {}
    for number, payload in enumerate(payloads):
        try:
            frame = _decode(payload)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise UnreadableFrames(f"frame {number} of the log: {error}") from error
        if isinstance(frame, Everything):
            clients, positions = {}, {}
            backlog = {report.id: report for report in frame.backlog}
        else:
            for one in frame.arrived:
                backlog.pop(one, None)
        clients |= {(*map(str, state.scope), state.source): state for state in frame.clients}
        for topic, moved in frame.positions.items():
            positions.setdefault(topic, {}).update(moved)
    return Everything(tuple(clients.values()), tuple(backlog.values()), positions)


def resumed(left: Everything, at_ms: int, idle_ms: int) -> RecoveredState:
    """Rule 2. `at_ms`: now."""
    reports = list(left.backlog)
    for state in left.clients:
        reports += ClientAudit.restored(state, idle_ms).reports(at_ms, leaves=True)
    if len(reports) > MOST_WAITING:
        reports = [report for report in reports if report.windows]
    return RecoveredState(tuple(reports), {topic: dict(of) for topic, of in left.positions.items()})


def joined(positions: Positions, more: Positions) -> Positions:
    """What several logs say of partitions: what any of them has counted, was counted."""
    found = {topic: dict(of) for topic, of in positions.items()}
    for topic, of in more.items():
        mine = found.setdefault(topic, {})
        for partition, (next_offset, newest_ms) in of.items():
            known = mine.get(partition, (next_offset, newest_ms))
            mine[partition] = max(known[0], next_offset), max(known[1], newest_ms)
    return found


def moved(known: Position | None, offset: int, timestamp_ms: int) -> Position | None:
    """A partition's position behind a record that is new, None if it was counted before (rule 3)."""
    if known is None:
        return offset + 1, timestamp_ms
    next_offset, newest_ms = known
    if offset >= next_offset:
        return offset + 1, newest_ms if newest_ms > timestamp_ms else timestamp_ms
    return (offset + 1, timestamp_ms) if timestamp_ms > newest_ms else None
