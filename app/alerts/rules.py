"""When an alert fires and is resolved: pure, from verdicts on windows, rules and a clock.

    verdicts ------seen--> matches of each subject ---+
    states so far (control log) ----------------------+--step--> states that changed (control log)
    outcomes of notices ------------------------------+
    states --due--> notices to send, and their channels

    nothing --holds--> pending --for--> firing --over, for--> resolved --a day--> gone
                          +-- over --> gone

Rules
1. A rule, a topic and a pair of tiers have one alert. At the consumers' tier each group has its own, since
   the figures of groups must not be added up. The alert lists its windows; these cause no further notices.
2. A provisional or unknown verdict never fires. An absent audit fires only if the rule names it, and never
   counts as loss.
3. A window of the alert may lose its verdict: it is provisional again, or its audit is absent. Then it
   neither fires nor resolves the alert.
4. While no verdicts are known (`rows` None), no alert fires or is resolved. A rule that held before counts as
   holding in that time.
5. An alert fires once in an episode. It is resolved only after the rule did not hold for as long as `for`.
6. A state is one record, and contains everything that the next leader needs to continue.
7. A notice has a number: 1 when the alert fires, 2 when it is resolved. A channel is due until it took the
   newest notice. If the control log does not show that it took one, it gets the notice again, with the same
   number. A channel that was down gets only the newest notice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, NamedTuple

import msgspec

from app.audit.folds.comparison import WindowState
from app.controllog.alert_state import AlertState, AlertSubject, AlertWindow, LastNotice
from app.kernel.json_types import JsonMapping

KEPT_WINDOWS = 20  # that an alert names
KEEP_RESOLVED_MS = 24 * 3_600_000
MOST_LIVE = 1_000  # of a region
MOST_RESOLVED = 1_000
UPDATE_MS = 30_000  # a state whose windows are the same, with other figures, is not written more often
KIND_OF = {
    WindowState.LOSSY.value: "loss",
    WindowState.DUPLICATED.value: "duplication",
    WindowState.CORRUPTED.value: "corruption",
    WindowState.LATE.value: "late",
    WindowState.ABSENT.value: "absent-audit",
}
NOTHING_CUT: Mapping[str, int] = MappingProxyType({})
UNSURE = {WindowState.PROVISIONAL.value, WindowState.ABSENT.value}

VerdictRow = JsonMapping  # of `app.audit.query.view.verdict_rows`


class AlertThreshold(NamedTuple):
    """The limit for a window: records, a share of the first tier's records, or milliseconds."""

    kind: Literal["records", "share", "ms"]
    value: float


class Rule(NamedTuple):
    """The conditions of one alert definition. `tiers` None: every pair. `channels`: the keys of channels."""

    name: str
    on: frozenset[str]
    means: Callable[[str], bool]
    tiers: tuple[str, str] | None = None
    above: AlertThreshold = AlertThreshold("records", 0)
    for_ms: int = 0
    within_ms: int = 24 * 3_600_000
    channels: tuple[str, ...] = ()


class RuleMatches(NamedTuple):
    """A subject's windows: those for which the rule holds, oldest first, and the starts of those without a
    verdict."""

    windows: list[AlertWindow]
    unsure: set[int]


class NoticeOutcome(NamedTuple):
    """A channel took a notice of an alert, or did not take it several times (`why`)."""

    id: str
    channel: str
    notice: int
    at_ms: int
    why: str = ""


# -- matches of verdicts --------------------------------------------------------------------------


def seen(rules: Iterable[Rule], rows: Iterable[VerdictRow], now_ms: int) -> dict[AlertSubject, RuleMatches]:
    """The matches of each subject that has verdicts."""
    by_place: dict[tuple[str, str, str, str], list[VerdictRow]] = {}
    for row in rows:
        place = row["topic"], row["from_tier"], row["to_tier"], row["group"] or ""
        by_place.setdefault(place, []).append(row)
    found: dict[AlertSubject, RuleMatches] = {}
    for rule in rules:
        for place, of_place in sorted(by_place.items()):
            if rule.means(place[0]) and rule.tiers in (None, place[1:3]):
                recent = [row for row in of_place if row["end_ms"] >= now_ms - rule.within_ms]
                recent.sort(key=lambda row: row["start_ms"])
                found[AlertSubject(rule.name, *place)] = _seen(rule, recent)
    return found


def _seen(rule: Rule, rows: Sequence[VerdictRow]) -> RuleMatches:
    """The matches of one subject; `rows` oldest first."""
    if "lag" in rule.on:  # only the newest known window counts, since older lag is over
        known = [r for r in rows if r["state"] not in UNSURE and r["lag_ms"] is not None]
        holds = [row for row in known[-1:] if row["lag_ms"] > rule.above.value]
        return RuleMatches([_window(row) for row in holds], set())
    holds = [row for row in rows if KIND_OF.get(row["state"]) in rule.on and _exceeds(rule.above, row)]
    sure = {row["start_ms"] for row in holds}
    unsure = {row["start_ms"] for row in rows if row["state"] in UNSURE} - sure
    return RuleMatches([_window(row) for row in holds], unsure)


def _exceeds(above: AlertThreshold, row: VerdictRow) -> bool:
    """Whether a window with a finding exceeds the threshold."""
    match KIND_OF[row["state"]]:
        case "corruption" | "absent-audit":
            return True  # the number of records is unknown
        case "duplication":
            count = row["extra"]
        case _:  # "late" counts the records that have still not arrived
            count = row["missing"]
    of = row["from_count"] if above.kind == "share" else 1
    return bool(count > above.value * of)


def _window(row: VerdictRow) -> AlertWindow:
    lag_ms = -1 if row["lag_ms"] is None else round(row["lag_ms"])
    return AlertWindow(
        row["start_ms"], row["end_ms"], row["state"], row["from_count"], row["to_count"],
        -1 if row["missing"] is None else row["missing"], -1 if row["extra"] is None else row["extra"],
        max(-1, lag_ms), tuple(row["absent"]),
    )  # fmt: skip


# -- changes of state -----------------------------------------------------------------------------


def step(
    states: Mapping[str, AlertState],
    rules: Mapping[str, Rule],
    defined: Collection[str],
    rows: Iterable[VerdictRow] | None,
    outcomes: Iterable[NoticeOutcome],
    now_ms: int,
    term: int,
    since: Mapping[str, int] = NOTHING_CUT,
) -> list[AlertState]:
    """The states that changed, to be written.

    Args:
        states: The states in the control log, by id.
        rules: The rules that can be read.
        defined: The names of all rules. A rule that cannot be read leaves its alerts as they are.
        rows: Verdicts of all topics that the rules watch; None: unknown (rule 4).
        since: By topic, the start of the oldest window with a known verdict.
    """
    changed: dict[str, AlertState] = {}

    def put(state: AlertState) -> None:
        if state.state == "gone":
            state = msgspec.structs.replace(state, windows=(), more=0, told={})
        changed[state.id] = msgspec.structs.replace(state, at_ms=now_ms, term=term)

    now_seen = None if rows is None else seen(rules.values(), rows, now_ms)
    live = {state.group: state for state in sorted(states.values(), key=_later) if state.is_live}
    for state in states.values():
        rule = rules.get(state.rule)
        if state.is_live and live[state.group] is not state:  # a write that was thought to have failed
            put(msgspec.structs.replace(state, state="gone"))
        elif rule is None:
            if state.rule not in defined:
                put(msgspec.structs.replace(state, state="gone"))
        elif not state.is_live:
            if now_ms - state.resolved_ms >= KEEP_RESOLVED_MS:
                put(msgspec.structs.replace(state, state="gone"))
        else:
            found = None if now_seen is None else now_seen.get(state.group, RuleMatches([], set()))
            at = state if found is None else _went_on(state, rule, found, now_ms, since.get(state.topic, 0))
            if _differs(state, at, now_ms):
                put(at)
    room = MOST_LIVE - len(live)
    for group, known in (now_seen or {}).items():
        if group not in live and known.windows and room > 0:
            room -= 1
            put(_holding(_new_state(group, now_ms), rules[group.rule], known, now_ms))
    for one in outcomes:
        of = changed.get(one.id, states.get(one.id))
        if of is not None and of.state != "gone":
            taken = _notices_taken(of, one)
            if taken != of.told:
                put(msgspec.structs.replace(of, told=taken))
    resolved = sorted((s for s in states.values() if s.state == "resolved"), key=lambda s: s.resolved_ms)
    for state in resolved[: max(0, len(resolved) - MOST_RESOLVED)]:
        put(msgspec.structs.replace(state, state="gone"))
    return list(changed.values())


def again(states: Mapping[str, AlertState], refused: Iterable[str], term: int) -> list[AlertState]:
    """The states whose ids a refused record has, too; written again, they stay in a compacted log."""
    found = (states[one] for one in sorted(refused) if one in states)
    return [msgspec.structs.replace(state, term=term) for state in found]


def left_out(states: Mapping[str, AlertState], found: Mapping[AlertSubject, RuleMatches]) -> int:
    """The number of subjects that match a rule and have no alert, because there are too many."""
    live = {state.group for state in states.values() if state.is_live}
    return sum(bool(one.windows) and group not in live for group, one in found.items())


def fingerprint(group: AlertSubject) -> str:
    """Identifies a subject; it never changes."""
    return hashlib.sha256("\0".join(filter(None, group)).encode()).hexdigest()[:16]


def _new_state(group: AlertSubject, now_ms: int) -> AlertState:
    return AlertState(
        at_ms=now_ms, id=f"{fingerprint(group)}-{now_ms:x}", term=0, state="pending", since_ms=now_ms,
        **group._asdict(),
    )  # fmt: skip


def _went_on(state: AlertState, rule: Rule, found: RuleMatches, now_ms: int, since_ms: int) -> AlertState:
    """The next state of a live alert. Windows that begin before `since_ms` have no known verdict."""
    if found.windows:
        return _holding(state, rule, found, now_ms)
    looked = [one.start_ms for one in state.windows if one.end_ms >= now_ms - rule.within_ms]
    if any(start_ms in found.unsure or start_ms < since_ms for start_ms in looked):
        return state  # rule 3
    if state.state == "pending":
        return msgspec.structs.replace(state, state="gone")
    over_ms = state.over_ms or now_ms
    if now_ms - over_ms < rule.for_ms:
        return msgspec.structs.replace(state, over_ms=over_ms)
    aged = bool(state.windows) and all(one.end_ms < over_ms - rule.within_ms for one in state.windows)
    return msgspec.structs.replace(
        state, state="resolved", aged=aged, over_ms=over_ms, resolved_ms=now_ms, notice=state.notice + 1
    )


def _holding(state: AlertState, rule: Rule, found: RuleMatches, now_ms: int) -> AlertState:
    newest = tuple(found.windows[-KEPT_WINDOWS:])
    state = msgspec.structs.replace(state, windows=newest, more=len(found.windows) - len(newest), over_ms=0)
    if state.state == "pending" and now_ms - state.since_ms >= rule.for_ms:
        return msgspec.structs.replace(state, state="firing", fired_ms=now_ms, notice=1)
    return state


def _later(state: AlertState) -> tuple[bool, int, str]:
    """Orders the live alerts of one subject. The last one counts: the first that fired, or else began."""
    return state.state == "firing", -state.since_ms, state.id


def _differs(before: AlertState, after: AlertState, now_ms: int) -> bool:
    """Whether the change is worth a record."""
    if before == after:
        return False
    if msgspec.structs.replace(after, windows=before.windows, more=before.more) != before:
        return True
    starts = [[window.start_ms for window in state.windows] for state in (before, after)]
    return starts[0] != starts[1] or now_ms - before.at_ms >= UPDATE_MS


def _notices_taken(state: AlertState, outcome: NoticeOutcome) -> dict[str, LastNotice]:
    """`state.told` after an outcome."""
    known = state.told.get(outcome.channel, LastNotice(0, 0))
    if outcome.why:
        if outcome.notice <= known.notice:
            return state.told
        failing_ms = known.failing_ms or outcome.at_ms
        known = msgspec.structs.replace(known, failing_ms=failing_ms, why=outcome.why)
    elif known.notice < outcome.notice <= state.notice:
        known = LastNotice(outcome.notice, outcome.at_ms)
    return {**state.told, outcome.channel: known}


# -- notices to send ------------------------------------------------------------------------------


def due(state: AlertState, rule: Rule) -> Iterator[str]:
    """Channels that have not taken the current notice (rule 7)."""
    if state.notice and state.state in {"firing", "resolved"}:
        for channel in rule.channels:
            taken = state.told.get(channel)
            if taken is None or taken.notice < state.notice:
                yield channel
