"""What goes over the wire to each kind of channel. Pure.

A webhook gets `{"version": "1", "id", "status", …}`: `id` is of the notice, and comes again when the same is
told again; `alert` is of the episode. Slack's format: `text` and `blocks`. Alertmanager: an alert of its API
v2, whose labels are always the same for a rule, topic and pair of tiers
(and group of consumers).
"""

from __future__ import annotations

from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

import msgspec

from app.alerts.channel_definition import Email
from app.alerts.delivery.notice import AlertNotice, amount, plain
from app.alerts.rules import fingerprint
from app.kernel.clock import iso

MAX_SLACK_CHARS = 2_900  # Slack takes 3,000 a section
EXPIRES_MS = 5 * 60_000  # Alertmanager holds an alert resolved that it has not heard of for so long
DOMAIN = "switchyard"


def webhook(notice: AlertNotice) -> dict[str, Any]:
    """For programs."""
    state = notice.state
    return {
        "version": "1",
        "id": notice.dedup_id,
        "alert": notice.id,
        "notice": notice.number,
        "test": notice.is_test,
        "status": notice.status,
        "rule": state.rule,
        "severity": notice.severity,
        "owner": notice.owner,
        "region": notice.region,
        "on": list(notice.on),
        "topic": state.topic,
        "from_tier": state.from_tier,
        "to_tier": state.to_tier,
        "group": state.reader or None,
        "since": iso(state.since_ms),
        "fired": iso(state.fired_ms),
        "aged": state.aged,
        "resolved": iso(state.resolved_ms) if state.resolved_ms else None,
        "title": notice.title,
        "summary": notice.summary,
        "windows": [_window(window) for window in state.windows],
        "more_windows": state.more,
        "todo": notice.todo,
    }


def _window(window: Any) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.structs.asdict(window)
    unknown = {name: None for name in ("missing", "extra", "lag_ms") if told[name] < 0}
    return {**told, **unknown, "absent": list(window.absent), "start": iso(window.start_ms)}


def slack(notice: AlertNotice) -> dict[str, Any]:
    """Slack's, also understood by Mattermost and others."""
    parts = [f"*{_escaped(notice.title)}*", _escaped(notice.summary)]
    if notice.lines:
        parts.append(_code("\n".join(notice.lines)))
    if notice.todo:
        parts.append(_code("\n".join(notice.todo)))
    blocks: list[dict[str, Any]] = [
        {"type": "section", "text": {"type": "mrkdwn", "text": part}} for part in parts
    ]
    foot = f"{notice.region} · {notice.state.rule} · {notice.dedup_id}"
    blocks.append({"type": "context", "elements": [{"type": "mrkdwn", "text": _escaped(foot)}]})
    return {"text": _escaped(notice.title), "blocks": blocks}


def _escaped(text: str) -> str:
    text = text[:MAX_SLACK_CHARS].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text[:MAX_SLACK_CHARS]


def _code(text: str) -> str:
    return f"```{_escaped(text.replace('```', ' '))}```"


def alertmanager(notice: AlertNotice, now_ms: int) -> list[dict[str, Any]]:
    """For POST /api/v2/alerts. While it fires it is told again and again; untold, it ends by itself."""
    state = notice.state
    labels = {
        "alertname": state.rule,
        "severity": notice.severity,
        "region": notice.region,
        "topic": state.topic,
        "from_tier": state.from_tier,
        "to_tier": state.to_tier,
        "group": state.reader,
        "owner": notice.owner,
        "fingerprint": fingerprint(state.group),
    }
    if notice.is_test:
        labels["test"] = "true"
    ends_ms = now_ms + EXPIRES_MS if notice.is_firing else state.resolved_ms
    annotations = {
        "summary": notice.title,
        "description": "\n".join([notice.summary, *notice.lines]),
        "runbook": "\n".join(notice.todo),
        "amount": plain(amount(notice.on, state.windows, more=state.more)),
    }
    return [
        {
            "labels": {name: plain(text) for name, text in labels.items() if text},
            "annotations": {name: text for name, text in annotations.items() if text},
            "startsAt": iso(state.fired_ms),
            "endsAt": iso(ends_ms),
        }
    ]


def mail(notice: AlertNotice, email: Email, now_ms: int) -> EmailMessage:
    """What comes again has the same Message-ID; what belongs together, one thread."""
    message = EmailMessage()
    message["Subject"] = notice.title[:300]
    message["From"] = email.from_
    message["To"] = ", ".join(email.to)
    message["Date"] = format_datetime(datetime.fromtimestamp(now_ms / 1000, UTC))
    message["Message-ID"] = f"<{notice.dedup_id}@{DOMAIN}>"
    message["Auto-Submitted"] = "auto-generated"
    if notice.number > 1:
        message["In-Reply-To"] = message["References"] = f"<{notice.id}-1@{DOMAIN}>"
    if notice.severity == "critical" and notice.is_firing:
        message["X-Priority"] = "1"
    message.set_content(notice.text)
    return message
