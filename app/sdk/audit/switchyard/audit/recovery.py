"""The contents of the write-ahead log, and how a starting process continues from them. Pure.

    WalSnapshot  the first frame of a file      WalChange  every later frame: it replaces what it names

Rules
1. A frame is whole or absent, so counts agree with the positions up to which records were counted.
2. A process never continues as the incarnation that it finds. It sends that incarnation's numbered reports,
   ends it with a last report of what was logged and not reported, and begins as another one. The end of a log
   may be lost, or a volume set back to an earlier state. Then a number stands for the same figures or for
   fewer, never for others, and nothing is counted twice.
3. A position is the next offset of a partition to count. A record below it was counted before, unless its
   timestamp is higher than all counted ones: then the topic was recreated under the same name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from switchyard.audit.model.client_counter import ClientAudit, ClientState
from switchyard.audit.model.reports import Report

# A partition's: the offset above all counted records, and their highest timestamp (ms).
Position = tuple[int, int]
MOST_WAITING = 10_000  # reports; beyond, reports without counts are dropped
Positions = dict[str, dict[int, Position]]  # topic -> partition -> position


class WalSnapshot(msgspec.Struct, frozen=True, omit_defaults=True, tag="everything"):
    """The whole state. `backlog` has waiting reports of earlier incarnations."""

    clients: tuple[ClientState, ...] = ()
    backlog: tuple[Report, ...] = ()
    positions: Positions = {}


class WalChange(msgspec.Struct, frozen=True, omit_defaults=True, tag="change"):
    """The changes since the earlier frames. `arrived` has the ids of reports that left the backlog."""

    clients: tuple[ClientState, ...] = ()
    arrived: tuple[str, ...] = ()
    positions: Positions = {}


class RecoveredState(NamedTuple):
    """The reports that a starting process has to send, and the positions from which it counts."""

    backlog: tuple[Report, ...]
    positions: Positions


class UnreadableFrames(ValueError):
    """The frames are of an unknown version."""


encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WalSnapshot | WalChange).decode


def read(payloads: Iterable[bytes]) -> WalSnapshot:
    """The state after all frames of a file.

    Raises:
        UnreadableFrames: Another version wrote them.
    """
    clients: dict[tuple[str, ...], ClientState] = {}
    backlog: dict[str, Report] = {}
    positions: Positions = {}
    for number, payload in enumerate(payloads):
        try:
            frame = _decode(payload)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise UnreadableFrames(f"frame {number} of the log: {error}") from error
        if isinstance(frame, WalSnapshot):
            clients, positions = {}, {}
            backlog = {report.id: report for report in frame.backlog}
        else:
            for one in frame.arrived:
                backlog.pop(one, None)
        clients |= {(*map(str, state.scope), state.source): state for state in frame.clients}
        for topic, moved in frame.positions.items():
            positions.setdefault(topic, {}).update(moved)
    return WalSnapshot(tuple(clients.values()), tuple(backlog.values()), positions)


def resumed(left: WalSnapshot, at_ms: int, idle_ms: int) -> RecoveredState:
    """Ends the incarnations of `left` (rule 2). `at_ms`: now."""
    reports = list(left.backlog)
    for state in left.clients:
        reports += ClientAudit.restored(state, idle_ms).reports(at_ms, leaves=True)
    if len(reports) > MOST_WAITING:
        reports = [report for report in reports if report.windows]
    return RecoveredState(tuple(reports), {topic: dict(of) for topic, of in left.positions.items()})


def joined(positions: Positions, more: Positions) -> Positions:
    """The positions of several logs. A record counts as counted if any log has counted it."""
    found = {topic: dict(of) for topic, of in positions.items()}
    for topic, of in more.items():
        mine = found.setdefault(topic, {})
        for partition, (next_offset, newest_ms) in of.items():
            known = mine.get(partition, (next_offset, newest_ms))
            mine[partition] = max(known[0], next_offset), max(known[1], newest_ms)
    return found


def moved(known: Position | None, offset: int, timestamp_ms: int) -> Position | None:
    """The position after a new record; None: the record was counted before (rule 3)."""
    if known is None:
        return offset + 1, timestamp_ms
    next_offset, newest_ms = known
    if offset >= next_offset:
        return offset + 1, newest_ms if newest_ms > timestamp_ms else timestamp_ms
    return (offset + 1, timestamp_ms) if timestamp_ms > newest_ms else None
