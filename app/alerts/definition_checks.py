"""What no single field of an alert shows: thresholds of another sort, secrets in clear, nobody to tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from app.alerts.channel_definition import REFERENCE, REMEDY, Alertmanager, Email, Webhook
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
UNCOUNTED = {"corruption", "absent-audit"}  # how many records is not known
LOCAL = ("localhost:", "127.0.0.1:", "[::1]:")


def alert_checks(document: Document, alert: AlertDefinition | None) -> Iterator[ConfigProblem]:
    """All of it; `alert` is None when a field is wrong."""
    if alert is None:
        return
    yield from _threshold(document, alert)
    yield from _topics(document, alert)
    yield from _channels(document, alert)


def _threshold(document: Document, alert: AlertDefinition) -> Iterator[ConfigProblem]:
    kinds, above = set(alert.spec.on), alert.above
    if "lag" in kinds and len(kinds) > 1:
        yield problem_at(
            document, (*SPEC, "on"), "lag stands with others, and its threshold is another one",
            "make an Alert of its own for lag",
        )  # fmt: skip
    elif "lag" in kinds and above.kind != "ms":
        yield problem_at(document, ABOVE, "of lag it is a duration", "write one like 30s")
    elif "lag" not in kinds and above.kind == "ms":
        yield problem_at(
            document, ABOVE, f"a duration, and {', '.join(sorted(kinds))} is told in records",
            "write a number of records, or a share like 0.1%",
        )  # fmt: skip
    elif kinds <= UNCOUNTED and above.value:
        yield problem_at(
            document, ABOVE, f"has no meaning with {', '.join(sorted(kinds))}: how many is not known",
            "leave it out",
        )  # fmt: skip
    if 0 < alert.spec.repeat < 60:
        yield problem_at(
            document, (*SPEC, "repeat"), "too often for people", "write 1m or more, or 0s for never"
        )
    if alert.spec.within <= alert.spec.for_:
        yield problem_at(
            document, (*SPEC, "within"), "windows are looked at no more before it can fire",
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
    """What is sent where. Problems are told of the whole channel: so no value is repeated."""
    if target.url.startswith(REFERENCE):
        url = ""
    else:
        url = target.url
        if inside := inside_of(url):
            yield problem_at(
                document, at, f"the address leads to {inside}, on every worker to another one",
                "name a host that all workers reach under one name", "warning",
            )  # fmt: skip
    for what in secrets_of(url, target.headers):
        yield problem_at(
            document, at, f"{what} looks like a secret, and whoever sees the definition sees it", REMEDY,
            "warning",
        )  # fmt: skip


def _channels(document: Document, alert: AlertDefinition) -> Iterator[ConfigProblem]:
    if not alert.spec.channels:
        yield problem_at(
            document, CHANNELS, "nobody is told: it is shown by alert list and in metrics only",
            "add a channel", "warning",
        )  # fmt: skip
    seen: Counter[str] = Counter()
    for index, channel in enumerate(alert.spec.channels):
        at: Path_ = (*CHANNELS, index, channel.kind)
        seen[channel.key] += 1
        if seen[channel.key] > 1:
            yield problem_at(document, at, "leads to the same place as one before it", "remove one")
        target = channel.target
        if isinstance(target, Webhook | Alertmanager):
            yield from _address(document, at, target)
        if not isinstance(target, Email):
            continue
        if (target.user is None) != (target.password is None):
            missing = "password" if target.password is None else "user"
            yield problem_at(document, (*at, missing), "missing, beside the other one", "add it")
        if target.tls == "none" and target.password and not target.smtp.startswith(LOCAL):
            yield problem_at(
                document, (*at, "tls"), "the password would cross the network in clear",
                "write starttls or tls",
            )  # fmt: skip
