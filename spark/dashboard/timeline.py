"""What happened, from all regions, on one timeline: what workers told as incidents, what the control log says
of failovers, roles, alerts, leaders and operators, and what the audit found. Pure.

Rules
1. An event is of an episode: a failover, a role's epoch, an alert from firing to its end. The newest event
   of an episode says what it is, the first one since when. Everything else is a moment: also what the control
   log refused, which is told as such and changes no episode.
2. `until_ms` is None of what is not known to be over. A failover that was only planned is over when its plan
   expires, a role that has not come anywhere when a higher one of its workload begins (`frames.happened`).
3. What others wrote is told in printable characters, and no longer than `MOST_CHARS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from app.controllog.alert_state import AlertState
from app.controllog.codec import BadEvent, IncidentRecord, control_event, incident
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
from spark.dashboard import decode
from spark.dashboard.times import iso

AUDIT, ALERT, FAILOVER, ROLE = "audit", "alert", "failover", "role"
INCIDENT, LEADER, OPERATOR = "incident", "leader", "operator"
KINDS = (AUDIT, ALERT, FAILOVER, ROLE, INCIDENT, LEADER, OPERATOR)
MOST_CHARS = 300
ENDED = ("done", "aborted")  # states of a failover


class Event(NamedTuple):
    """A row of `frames.EVENT`; times in ms. `at_ms`, `position`: which one of an episode is the newest.
    `subject`, `rank`: an episode of a higher rank ends those of the same subject."""

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


class _Said(NamedTuple):
    kind: str
    what: str
    who: str = ""
    episode: str = ""
    from_ms: int | None = None  # None: when it was written
    is_over: bool = True
    expires_ms: int = 0  # of what is not over: when it is if nothing else is said; 0: never
    region: str = ""  # "": the one whose log it is
    subject: str = ""  # "": the episode is its own
    rank: int = 0


def event(region: str, table: str, key: str, position: int, value: bytes) -> Event | None:
    """What an entry of the activity or an incident is on the timeline; None: nothing, as a
    deployment, or an event of a later version."""
    try:
        told: AnyControlEvent | IncidentRecord
        told = incident(value) if table == decode.INCIDENTS else control_event(value)
    except BadEvent:
        return None
    said = _incident(told) if isinstance(told, IncidentRecord) else _said(told)
    if said is None:
        return None
    if table == decode.ACTIVITY and decode.is_refused(value):
        said = _Said(said.kind, f"refused: {said.what}", said.who)
    from_ms = told.at_ms if said.from_ms is None else said.from_ms
    until_ms: int | None = told.at_ms
    if not said.is_over:
        until_ms = max(told.at_ms, min(said.expires_ms, decode.LATEST_MS)) if said.expires_ms else None
    # Its time, too: a log that was made anew uses its keys again.
    episode = said.episode or f"{region}/{table}/{key}/{told.at_ms}"
    return Event(
        said.kind,
        episode,
        clipped(said.region or region),
        told.at_ms,
        position,
        max(0, min(from_ms, told.at_ms)),
        until_ms,
        clipped(said.what),
        clipped(said.who),
        said.subject or episode,
        max(0, min(said.rank, decode.MOST)),
    )


def _incident(told: IncidentRecord) -> _Said:
    words = f"{told.kind}: {told.subject}: {told.message}"
    return _Said(INCIDENT, f"{words}; {told.remedy}" if told.remedy else words, told.worker)


def _said(told: AnyControlEvent) -> _Said | None:
    match told:
        case FailoverRun():
            why = f": {told.result or told.reason}" if told.result or told.reason else ""
            what = f"{told.id} to {told.to}: {'forced, ' if told.forced else ''}{told.state}{why}"
            expires_ms = told.expires_ms if told.state == "planned" else 0
            is_over = told.state in ENDED
            return _Said(FAILOVER, what, told.actor, f"failover/{told.id}", None, is_over, expires_ms)
        case RolePut():
            former = f" instead of {told.previous}" if told.previous else ""
            why = f": {told.reason}" if told.reason else ""
            state = "is active" if told.state == "active" else "is to be active"
            what = f"{told.key} {state} in {told.region}{former}, epoch {told.epoch}{why}"
            episode = f"role/{told.key}/{told.epoch}/{told.region}"  # the same in every region's log
            return _Said(
                ROLE, what, told.actor, episode, is_over=told.state == "active", region=told.region,
                subject=f"role/{told.key}", rank=told.epoch,
            )  # fmt: skip
        case AlertState():
            if not told.fired_ms:
                return None  # it never fired
            what = f"{told.rule}: {told.topic}, {told.tiers}: {told.state}"
            return _Said(
                ALERT, what, "", f"alert/{told.id}", told.since_ms, told.state in ("resolved", "gone")
            )
        case Claim():
            return _Said(LEADER, f"claims term {told.term}", told.worker)
        case Drain():
            what = "is drained" if told.draining else "takes jobs again"
            return _Said(OPERATOR, f"{told.worker} {what}", told.actor)
        case Moving():
            what = f"is moved to {told.to}" if told.move else "is moved no more"
            return _Said(OPERATOR, f"{told.key} {what}", told.actor)
        case OperatorAct():
            return _Said(OPERATOR, f"{told.subject}: {told.action} {told.detail}", told.actor)
        case Paused():
            of = f"{told.key}, partition {told.partition}" if told.partition >= 0 else told.key
            return _Said(OPERATOR, f"{of} {'is paused' if told.paused else 'goes on'}", told.actor)
        case _:
            return None


def clipped(text: str) -> str:
    """Rule 3."""
    plain = "".join(char if char.isprintable() else " " for char in text[: MOST_CHARS + 1])
    return plain if len(plain) <= MOST_CHARS else plain[: MOST_CHARS - 1] + "…"


def audit_row(run: Mapping[str, Any], owners: Sequence[str]) -> dict[str, Any]:
    """A run of `frames.audit_runs` on the timeline. `owners`: of its topic."""
    group = f" of {run['group']}" if run["group"] else ""
    differ = [f"{run[name]:,} {word}" for name, word in (("missing", "missing"), ("extra", "too many"))
              if run[name] > 0]  # fmt: skip
    absent = [f"not heard: {run['absent']}"] if run["absent"] else []
    windows = f"{run['windows']:,} window{'s' if run['windows'] > 1 else ''}"
    what = f"{run['topic']}, {run['from_tier']} to {run['to_tier']}{group}: {run['state']}"
    told = ", ".join([what, *differ, *absent, windows])
    return _row(AUDIT, run["region"], run["from_ms"], run["until_ms"], told, ", ".join(owners))


def event_row(found: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `frames.EVENT` on the timeline."""
    return _row(*(found[name] for name in ("kind", "region", "from_ms", "until_ms", "what", "who")))


def _row(kind: str, region: str, from_ms: int, until_ms: int | None, what: str, who: str) -> dict[str, Any]:
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


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The newest first."""
    return sorted(rows, key=lambda one: (-one["from_ms"], one["region"], one["kind"], one["what"]))
