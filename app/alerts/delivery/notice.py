"""The words of a notice: the finding, its topic and tiers, the number of records, and what to do. Pure.

Names of topics and tiers come from records and clients, so a notice replaces unprintable characters.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from app.alerts.rules import KIND_OF
from app.controllog.alert_state import AlertState, AlertWindow
from app.failover.topology import AGGREGATE, REGIONAL
from app.kernel.clock import iso

SHOWN_WINDOWS = 10
MAX_NAME_CHARS = 249
WITH_LOGS = {
    REGIONAL,
    AGGREGATE,
    "other",
}  # clients of the other tiers keep none: nothing can be copied there


class AlertNotice(NamedTuple):
    """The notice that every channel of an alert gets.

    Attributes:
        id, number: The alert's episode, and the notice in it. A notice that is sent again has the same two,
            so its receiver can recognize it.
        on: The kinds of findings that the alert watches.
        state: The alert.
        is_test: A test of the channel; nothing has happened.
    """

    id: str
    number: int
    region: str
    owner: str
    severity: str
    on: tuple[str, ...]
    state: AlertState
    is_test: bool = False

    @property
    def is_firing(self) -> bool:
        """Whether the alert still fires; otherwise it was resolved."""
        return self.state.state != "resolved"

    @property
    def status(self) -> str:
        """`firing` or `resolved`."""
        return "firing" if self.is_firing else "resolved"

    @property
    def dedup_id(self) -> str:
        """Identifies the notice: a receiver that got this id before may ignore the notice."""
        return f"{self.id}-{self.number}"

    @property
    def title(self) -> str:
        """One line: the finding, its topic and its tiers."""
        state = self.state
        mark = "TEST" if self.is_test else f"{self.status.upper()} {self.severity}"
        what = amount(self.on, state.windows, more=state.more)
        return plain(f"[{mark}] {state.topic}, {state.tiers}: {what}")

    @property
    def summary(self) -> str:
        """A sentence: since when the alert holds, or when and why it ended."""
        state = self.state
        if self.is_test:
            return f"A test of alert {state.rule} in region {self.region}: nothing has happened."
        where = f"Alert {state.rule}, region {self.region}"
        if not self.is_firing:
            since = f"over since {iso(state.over_ms)}; it fired at {iso(state.fired_ms)}"
            aged = "; its windows are too old to be checked, and nothing was mended" if state.aged else ""
            return plain(f"{where}: {since}{aged}.")
        windows = f", in windows since {iso(state.windows[0].start_ms)}" if state.windows else ""
        return plain(f"{where}: holds since {iso(state.since_ms)}{windows}.")

    @property
    def lines(self) -> list[str]:
        """A line for each window, the newest first."""
        state = self.state
        shown = [plain(describe_window(window)) for window in reversed(state.windows[-SHOWN_WINDOWS:])]
        left = len(state.windows) - len(shown) + state.more
        return shown + ([f"… and {left} more windows"] if left else [])

    @property
    def todo(self) -> list[str]:
        """Commands that show more, each with its purpose; none if the alert was resolved."""
        return list(commands(self.on, self.state)) if self.is_firing else []


def plain(text: str) -> str:
    """`text` with `?` for each character that is not printable, since these can control a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


def amount(on: Sequence[str], windows: Sequence[AlertWindow], more: int = 0) -> str:
    """The number of records in an alert's windows, and what happened to them, in words."""
    if "lag" in on:
        newest = windows[-1] if windows else None
        return "lag" if newest is None else f"the median record comes {newest.lag_ms / 1000:g} s later"
    kinds: dict[str, list[AlertWindow]] = {}
    for window in windows:
        kinds.setdefault(KIND_OF.get(window.state, window.state), []).append(window)
    said = [_of_kind(kind, of) for kind, of in kinds.items()]
    count = len(windows) + more
    least = "at least " if more else ""
    return f"{least}{', '.join(said)} ({count} window{'s' if count != 1 else ''})" if said else ", ".join(on)


def _of_kind(kind: str, windows: Sequence[AlertWindow]) -> str:
    missing = sum(max(0, window.missing) for window in windows)
    extra = sum(max(0, window.extra) for window in windows)
    match kind:
        case "loss":
            return f"{missing} of {sum(w.from_count for w in windows)} records lost"
        case "duplication":
            return f"{extra} records too many"
        case "late":
            return f"{missing} records have not come yet"
        case "absent-audit":
            named = sorted({tier for window in windows for tier in window.absent})
            return f"the audit of {', '.join(named) or 'a tier'} is missing, nothing can be said of loss"
        case _:
            return "contents differ although the counts are the same"


def describe_window(window: AlertWindow) -> str:
    """One line about a window."""
    kind = KIND_OF.get(window.state, window.state)
    span = f"{_short(window.start_ms)} to {_short(window.end_ms)}"
    counts = f"{window.from_count} before, {window.to_count} after"
    detail = {
        "loss": f"{window.missing} missing", "duplication": f"{window.extra} too many",
        "late": f"{window.missing} not there yet", "absent-audit": f"no audit of {', '.join(window.absent)}",
    }.get(kind, "")  # fmt: skip
    lag = "" if window.lag_ms < 0 else f"{window.lag_ms / 1000:g} s later"
    return f"{span}: {'; '.join(filter(None, [kind, counts, detail, lag]))}"


def _short(at_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


def _name(text: str) -> str:
    """A name from records, quoted for a shell."""
    return shlex.quote(plain(text)[:MAX_NAME_CHARS])


def commands(on: Sequence[str], state: AlertState) -> Iterator[str]:
    """Commands that show more about an alert that fires."""
    kinds = set(on) if "lag" in on else {KIND_OF.get(window.state, "") for window in state.windows} or set(on)
    topic = _name(state.topic)
    start = f" --from {_short(state.windows[0].start_ms)}" if state.windows else ""
    yield f"switchyard audit loss --topic {topic}{start}    # which windows, and how many"
    if kinds & {"loss", "corruption", "duplication"}:
        window = f"--topic {topic} --start {_short(state.windows[-1].start_ms)}" if state.windows else ""
        tiers = f"--from-tier {_name(state.from_tier)} --to-tier {_name(state.to_tier)}"
        yield f"switchyard audit missing {window} {tiers}    # which records of the newest window"
        if "loss" in kinds and {state.from_tier, state.to_tier} <= WITH_LOGS:
            yield f"switchyard audit copy-again {window} {tiers}    # copies them again; a dry run first"
    if kinds & {"lag", "late", "loss"}:
        yield "switchyard route list    # does what copies them stand still, or halt"
    if "absent-audit" in kinds:
        yield f"switchyard audit report --topic {topic}{start}    # which tier reports, and until when"
        yield "switchyard worker list    # are the workers there that count it"
    yield f"switchyard alert describe {shlex.quote(state.rule)}    # since when, and who was told"
