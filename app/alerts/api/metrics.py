"""Prometheus metrics of alerts, from the leader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from app.kernel.clock import now_ms
from app.worker.runtime.service import Runtime

LABELS = ("alert", "severity", "topic", "from_tier", "to_tier", "group")


def of_alerts(runtime: Runtime) -> Iterator[Metric]:
    """Firing and pending alerts, results of notices, and the age of the last evaluation."""
    alerts, view = runtime.alerts, runtime.control.view
    definitions = alerts.definitions()
    severities = {definition.name: definition.spec.severity for definition in definitions}
    firing = GaugeMetricFamily("switchyard_alerts_firing", "1 while an alert fires", labels=LABELS)
    pending = GaugeMetricFamily(
        "switchyard_alerts_pending", "Alerts that have not held for long enough", labels=("alert",)
    )
    waiting: Counter[str] = Counter()
    for state in view.alert_states.states.values():
        if state.state == "firing":
            severity = severities.get(state.rule, "unknown")
            place = state.topic, state.from_tier, state.to_tier, state.reader
            firing.add_metric((state.rule, severity, *place), 1)
        waiting[state.rule] += state.state == "pending"
    for name in severities:
        pending.add_metric((name,), waiting[name])
    yield from (firing, pending)
    failing = GaugeMetricFamily(
        "switchyard_alert_channel_failing", "1 while a channel takes no notices", labels=("alert", "channel")
    )
    for definition in definitions:
        for channel in definition.spec.channels:
            lane = alerts.deliveries.lanes.get(channel.key)
            is_failing = not channel.target or (lane is not None and bool(lane.why))
            failing.add_metric((definition.name, channel.key), is_failing)
    notices = CounterMetricFamily(
        "switchyard_alert_notices", "Notices by their result", labels=("alert", "channel", "result")
    )
    for labels, count in sorted(alerts.deliveries.counts.items()):
        notices.add_metric(labels, count)
    left_out = GaugeMetricFamily("switchyard_alerts_left_out", "Alerts without room", value=alerts.left_out)
    age = GaugeMetricFamily(
        "switchyard_alerts_look_age_seconds", "Age of the last evaluation of alerts, while there are alerts",
        labels=(),
    )  # fmt: skip
    if alerts.looked_ms and definitions:
        age.add_metric((), max(0.0, (now_ms() - alerts.looked_ms) / 1000))
    yield from (failing, notices, left_out, age)
