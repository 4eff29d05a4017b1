"""The body of the request that each kind of channel gets. Pure.

A webhook gets `{"version": "1", "id", "status", …}`. `id` identifies the notice, also when the worker sends
it again; `alert` identifies the episode, from firing to resolved. Alertmanager gets an alert of its API v2.
Its labels depend only on the rule, the topic, the pair of tiers and the consumer group.
"""

from __future__ import annotations

import msgspec

from app.alerts.delivery.notice import AlertNotice, amount, plain
from app.alerts.rules import fingerprint
from app.controllog.alert_state import AlertWindow
from app.kernel.clock import iso
from app.kernel.json_types import JsonObject

EXPIRES_MS = 5 * 60_000  # after this time without a request, Alertmanager resolves an alert


def webhook(notice: AlertNotice) -> JsonObject:
    """The JSON of a webhook: the notice with all windows that the control log names."""
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
        "windows": [window_fields(window) for window in state.windows],
        "more_windows": state.more,
        "todo": notice.todo,
    }


def window_fields(window: AlertWindow) -> JsonObject:
    fields: JsonObject = msgspec.structs.asdict(window)
    unknown = {name: None for name in ("missing", "extra", "lag_ms") if fields[name] < 0}
    return {**fields, **unknown, "absent": list(window.absent), "start": iso(window.start_ms)}


def alertmanager(notice: AlertNotice, now_ms: int) -> list[JsonObject]:
    """The JSON of POST /api/v2/alerts. A firing alert ends after `EXPIRES_MS` unless it is sent again."""
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
