"""Reads the region's forecast topic, which Spark writes, into `app.sizing.forecasts.Forecasts`.

What is no forecast is logged, and the leader tells it as an incident: the first at once, then at most every
`TELL_AGAIN_S`, with how many. What a worker found before it led is in `GET /sizing` and `/metrics`
only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import structlog

from app.controllog.topics import ControlTopics
from app.kafka.client.topic_tail import TopicTail
from app.kernel.clock import now_ms
from app.kernel.repeated_trouble import RepeatedTrouble
from app.sizing.forecasts import Forecasts

log = structlog.get_logger(__name__)

REMEDY = "only python -m spark size --publish should write there; delete the record by its key, or let it be"

ReportIncident = Callable[[str, str, str, str], None]


def forecast_tail(
    topics: ControlTopics,
    options: dict[str, Any],
    forecasts: Forecasts,
    report_incident: ReportIncident,
    leads: Callable[[], bool],
) -> TopicTail:
    """A follower of the topic from its start; `options` are of aiokafka's clients."""
    name = topics.forecast.name
    return TopicTail(name, options, ForecastReader(name, forecasts, report_incident, leads), from_start=True)


class ForecastReader:
    """Feeds records of `topic` to `forecasts`, and tells what is passed over. `clock`: monotonic seconds."""

    def __init__(
        self,
        topic: str,
        forecasts: Forecasts,
        report_incident: ReportIncident,
        leads: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic = topic
        self._forecasts = forecasts
        self._report_incident = report_incident
        self._leads = leads
        self._clock = clock
        self._passed_over = RepeatedTrouble()

    def __call__(self, records: list[Any]) -> None:
        """Takes records of aiokafka's in; bad ones raise nothing."""
        bad, last = 0, ""
        for record in records:
            why = self._forecasts.accept(record.key, record.value, now_ms())
            if why:
                bad, last = bad + 1, f"offset {record.offset}: {why}"
        if not bad:
            return
        log.warning("records are no forecasts", topic=self._topic, records=bad, last=last)
        self._passed_over.record(last, bad)
        if self._leads() and (due := self._passed_over.due(self._clock())):
            message = f"{due[0]} records of {self._topic} are passed over; the last, at {due[1]}"
            self._report_incident("forecast-passed-over", self._topic, message, REMEDY)
