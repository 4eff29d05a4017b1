"""One timeline of all regions: workers' incidents, the control log's failovers, roles, alerts, leaders and
operator acts, and the audit's results. Pure.

Rules
1. The events of one failover, of one role's epoch, of one alert that fired, or of one incident (its report
   and its end) form an episode. The newest event gives its text, the first one its start; an alert's begins
   when its condition began. Every other event is a moment. An event that the control log refused is a moment
   too: it is shown as refused and changes no episode.
2. `until_ms` is None if the end is not known. A failover that is only planned ends when its plan expires. A
   role that never became active ends when a higher one of its workload begins (`frames.happened`).
3. Texts from records are cut to `MOST_CHARS` printable characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec

from app.controllog.alert_state import AlertState
from app.controllog.codec import BadEvent, IncidentRecord, control_event, encode, incident
from app.controllog.events import (
    AnyControlEvent,
    Claim,
    Drain,
    FailoverRun,
    Moving,
    OperatorAct,
    Paused,
    RolePut,
)
from app.kernel.json_types import JsonMapping, JsonObject
from spark.dashboard import decode
from spark.dashboard.times import iso

AUDIT, ALERT, FAILOVER, ROLE = "audit", "alert", "failover", "role"
INCIDENT, LEADER, OPERATOR = "incident", "leader", "operator"
KINDS = (AUDIT, ALERT, FAILOVER, ROLE, INCIDENT, LEADER, OPERATOR)
MOST_CHARS = 300
ENDED = ("done", "aborted")  # states of a failover


class Event(NamedTuple):
    """A row of `frames.EVENT`; times in ms. `at_ms` and `position` order an episode's events. An episode of a
    higher `rank` ends those of the same `subject`."""

    kind: str
    episode: str
    region: str
    at_ms: int
    position: int
    from_ms: int
    until_ms: int | None
    what: str
    who: str
    subject: str
    rank: int


class _Description(NamedTuple):
    kind: str
    what: str
    who: str = ""
    episode: str = ""
    from_ms: int | None = None  # None: the time of the record
    is_over: bool = True
    expires_ms: int = 0  # the end, if the episode has no later event; 0: unknown
    region: str = ""  # "": the region of the log
    subject: str = ""  # "": the episode
    rank: int = 0


def event(region: str, table: str, key: str, position: int, value: bytes) -> Event | None:
    """The event of an activity entry or incident; None if it has none, such as a deployment."""
    try:
        record: AnyControlEvent | IncidentRecord
        record = incident(value) if table == decode.INCIDENTS else control_event(value)
    except BadEvent:
        return None
    at_ms, description = record.at_ms, None
    if isinstance(record, IncidentRecord):
        at_ms, description = max(at_ms, record.ended_ms), _incident(record, region)
    else:
        description = _control_event(record)
    if description is None:
        return None
    if table == decode.ACTIVITY and decode.is_refused(value):
        description = _Description(description.kind, f"refused: {description.what}", description.who)
    from_ms = record.at_ms if description.from_ms is None else description.from_ms
    until_ms: int | None = at_ms
    if not description.is_over:
        until_ms = (
            max(record.at_ms, min(description.expires_ms, decode.LATEST_MS))
            if description.expires_ms
            else None
        )
    # With the time, because a log that is made again uses the same keys.
    episode = description.episode or f"{region}/{table}/{key}/{record.at_ms}"
    return Event(
        description.kind,
        episode,
        clipped(description.region or region),
        at_ms,
        position,
        max(0, min(from_ms, record.at_ms)),
        until_ms,
        clipped(description.what),
        clipped(description.who),
        description.subject or episode,
        max(0, min(description.rank, decode.MOST)),
    )


def _incident(record: IncidentRecord, region: str) -> _Description:
    words = f"{record.kind}: {record.subject}: {record.message}"
    what = "; ".join(filter(None, (words, record.remedy, record.ended_why)))
    report = msgspec.structs.replace(record, ended_ms=0, ended_why="")  # its end differs only in these
    episode = f"incident/{region}/{sha256(encode(report)).hexdigest()}"
    is_over = not record.lasts or record.ended_ms > 0
    return _Description(INCIDENT, what, record.worker, episode, is_over=is_over)


def _control_event(record: AnyControlEvent) -> _Description | None:
    match record:
        case FailoverRun():
            why = f": {record.result or record.reason}" if record.result or record.reason else ""
            what = f"{record.id} to {record.to}: {'forced, ' if record.forced else ''}{record.state}{why}"
            expires_ms = record.expires_ms if record.state == "planned" else 0
            is_over = record.state in ENDED
            return _Description(
                FAILOVER, what, record.actor, f"failover/{record.id}", None, is_over, expires_ms
            )
        case RolePut():
            former = f" instead of {record.previous}" if record.previous else ""
            why = f": {record.reason}" if record.reason else ""
            state = "is active" if record.state == "active" else "becomes active"
            what = f"{record.key} {state} in {record.region}{former}, epoch {record.epoch}{why}"
            episode = f"role/{record.key}/{record.epoch}/{record.region}"  # the same in every region's log
            return _Description(
                ROLE, what, record.actor, episode, is_over=record.state == "active", region=record.region,
                subject=f"role/{record.key}", rank=record.epoch,
            )  # fmt: skip
        case AlertState():
            if not record.fired_ms:
                return None  # it never fired
            what = f"{record.rule}: {record.topic}, {record.tiers}: {record.state}"
            return _Description(
                ALERT, what, "", f"alert/{record.id}", record.since_ms, record.state in ("resolved", "gone")
            )
        case Claim():
            return _Description(LEADER, f"claims term {record.term}", record.worker)
        case Drain():
            what = "is drained" if record.draining else "accepts jobs again"
            return _Description(OPERATOR, f"{record.worker} {what}", record.actor)
        case Moving():
            what = f"is moved to {record.to}" if record.move else "is no longer moved"
            return _Description(OPERATOR, f"{record.key} {what}", record.actor)
        case OperatorAct():
            return _Description(OPERATOR, f"{record.subject}: {record.action} {record.detail}", record.actor)
        case Paused():
            of = f"{record.key}, partition {record.partition}" if record.partition >= 0 else record.key
            return _Description(
                OPERATOR, f"{of} {'is paused' if record.paused else 'is resumed'}", record.actor
            )
        case _:
            return None


def clipped(text: str) -> str:
    """Applies rule 3."""
    plain = "".join(char if char.isprintable() else " " for char in text[: MOST_CHARS + 1])
    return plain if len(plain) <= MOST_CHARS else plain[: MOST_CHARS - 1] + "…"


def audit_row(run: JsonMapping, owners: Sequence[str]) -> JsonObject:
    """The event of a run of `frames.audit_runs`. `owners`: of its topic."""
    group = f" of {run['group']}" if run["group"] else ""
    differ = [f"{run[name]:,} {word}" for name, word in (("missing", "missing"), ("extra", "extra"))
              if run[name] > 0]  # fmt: skip
    absent = [f"no report from: {run['absent']}"] if run["absent"] else []
    windows = f"{run['windows']:,} window{'s' if run['windows'] > 1 else ''}"
    what = f"{run['topic']}, {run['from_tier']} to {run['to_tier']}{group}: {run['state']}"
    text = ", ".join([what, *differ, *absent, windows])
    return _row(AUDIT, run["region"], run["from_ms"], run["until_ms"], text, ", ".join(owners))


def event_row(found: JsonMapping) -> JsonObject:
    """The timeline's row of `frames.EVENT`."""
    return _row(*(found[name] for name in ("kind", "region", "from_ms", "until_ms", "what", "who")))


def _row(kind: str, region: str, from_ms: int, until_ms: int | None, what: str, who: str) -> JsonObject:
    return {
        "from_ms": from_ms,
        "until_ms": until_ms,
        "from": iso(from_ms),
        "until": None if until_ms is None else iso(until_ms),
        "region": region,
        "kind": kind,
        "what": clipped(what),
        "who": clipped(who),
    }


def in_order(rows: Iterable[JsonObject]) -> list[JsonObject]:
    """The newest first."""
    return sorted(rows, key=lambda one: (-one["from_ms"], one["region"], one["kind"], one["what"]))
