"""Checks of an alert that no single field shows: the threshold's unit, the topics, the channels' addresses.

They also refuse channels that an earlier version had, because only a stored definition may name these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from app.alerts.channel_definition import (
    REFERENCE,
    REMEDY,
    REMOVED,
    REMOVED_REMEDY,
    Alertmanager,
    Webhook,
)
from app.alerts.definition import AlertDefinition
from app.alerts.egress_policy import inside_of, secrets_of
from app.config.problems import ConfigProblem, Document
from app.config.syntax_tree import Path_
from app.dispatch.definition_checks import problem_at
from app.replicate.definition_checks import TOPICS
from app.replicate.model.regular_language import LanguageTable, TooComplicated
from app.replicate.model.route import Route

SPEC: Path_ = ("spec",)
ABOVE: Path_ = ("spec", "above")
CHANNELS: Path_ = ("spec", "channels")
UNCOUNTED = {"corruption", "absent-audit"}  # the number of records is unknown


def alert_checks(document: Document, alert: AlertDefinition | None) -> Iterator[ConfigProblem]:
    """The problems of an alert; `alert` is None if a field is invalid."""
    if alert is None:
        return
    yield from _threshold(document, alert)
    yield from _topics(document, alert)
    yield from _channels(document, alert)


def _threshold(document: Document, alert: AlertDefinition) -> Iterator[ConfigProblem]:
    kinds, above = set(alert.spec.on), alert.above
    if "lag" in kinds and len(kinds) > 1:
        yield problem_at(
            document, (*SPEC, "on"), "lag has another kind of threshold than the others",
            "make an Alert of its own for lag",
        )  # fmt: skip
    elif "lag" in kinds and above.kind != "ms":
        yield problem_at(document, ABOVE, "the threshold of lag is a duration", "write one like 30s")
    elif "lag" not in kinds and above.kind == "ms":
        yield problem_at(
            document, ABOVE, f"is a duration, but {', '.join(sorted(kinds))} counts records",
            "write a number of records, or a share like 0.1%",
        )  # fmt: skip
    elif kinds <= UNCOUNTED and above.value:
        yield problem_at(
            document, ABOVE, f"has no meaning for {', '.join(sorted(kinds))}: their records have no number",
            "leave it out",
        )  # fmt: skip
    if alert.spec.repeat is not None:
        yield problem_at(
            document, (*SPEC, "repeat"),
            "has no effect: a channel gets one notice when the alert fires, and one when it ends",
            "leave it out; for reminders, set repeat_interval in Alertmanager", "warning",
        )  # fmt: skip
    if alert.spec.within <= alert.spec.for_:
        yield problem_at(
            document, (*SPEC, "within"), "the alert would stop checking a window before it can fire",
            "write more than for",
        )  # fmt: skip


def _topics(document: Document, alert: AlertDefinition) -> Iterator[ConfigProblem]:
    try:
        words = LanguageTable()
        route = Route(alert.name, "", "", alert.spec.topics, alert.spec.exclude)
        if words.shortest(route.domain(words)) is None:
            remedy = "exclude less, or name the internal topic"
            yield problem_at(document, TOPICS, "no topic is meant: all are excluded, or internal", remedy)
    except TooComplicated as error:
        message, _, remedy = str(error).rpartition("; ")
        yield problem_at(document, TOPICS, message, remedy)


def _address(document: Document, at: Path_, target: Webhook | Alertmanager) -> Iterator[ConfigProblem]:
    """Warns of the receiver's address. A problem is about the whole channel, so that it repeats no value."""
    if target.url.startswith(REFERENCE):
        url = ""
    else:
        url = target.url
        if inside := inside_of(url):
            yield problem_at(
                document, at, f"the address leads to {inside}, and on each worker to another one",
                "name a host that all workers reach under one name", "warning",
            )  # fmt: skip
    for what in secrets_of(url, target.headers):
        yield problem_at(
            document, at, f"{what} looks like a secret, and everybody who sees the definition sees it",
            REMEDY, "warning",
        )  # fmt: skip


def _channels(document: Document, alert: AlertDefinition) -> Iterator[ConfigProblem]:
    if not alert.spec.channels:
        yield problem_at(
            document, CHANNELS, "nobody gets a notice: only `alert list` and metrics show the alert",
            "add a channel", "warning",
        )  # fmt: skip
    seen: Counter[str] = Counter()
    for index, channel in enumerate(alert.spec.channels):
        at: Path_ = (*CHANNELS, index, channel.kind)
        if channel.target is None:  # the problem omits the value, which may be a secret address
            field, place = ".".join(map(str, at)), document.position(at, key=True)
            yield ConfigProblem(REMOVED, REMOVED_REMEDY, field, "", document.file, *place)
            continue
        seen[channel.key] += 1
        if seen[channel.key] > 1:
            yield problem_at(document, at, "leads to the same place as an earlier channel", "remove one")
        yield from _address(document, at, channel.target)
