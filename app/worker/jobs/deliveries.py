"""Passes a fetch service's deliveries to pumps: batches, lost offsets, another log, troubles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import structlog

from app.kafka.fetch.deliveries import FetchedBatches, FetchIncident, FetchItem, FetchKey, LogGap
from app.kafka.fetch.service import FetchService
from app.kernel.incidents import ReportIncident, until_closed
from app.kernel.troubles import FETCH_TROUBLE, TroubleSource
from app.worker.jobs.kind import JobRestarts
from app.worker.jobs.pump import Pump
from app.worker.jobs.start_position import LineageReset

log = structlog.get_logger(__name__)

MOST_ITEMS = 16  # of an event: the agent does not yield within

P = TypeVar("P", bound=Pump)


class FetchedItems:
    """Items that travel together. It takes more until the agent has it."""

    __slots__ = ("_items", "is_open")

    def __init__(self, item: FetchItem) -> None:
        self._items = [item]
        self.is_open = True

    def add(self, item: FetchItem) -> None:
        self._items.append(item)
        self.is_open = len(self._items) < MOST_ITEMS

    def take(self) -> Sequence[FetchItem]:
        """The items in their order; there will be no more."""
        self.is_open = False
        return self._items


def pass_to_pump(
    pump: P | None, item: FetchItem, jobs: JobRestarts, report_incident: ReportIncident,
    skip: Callable[[P, LogGap], None] | None = None,
) -> None:  # fmt: skip
    """Passes a delivery to its job's pump. Never raises.

    Args:
        pump: None: the job does not run here.
        skip: Takes lost offsets; without it they are passed over and reported.
    """
    if pump is None or pump.epoch != item.key.epoch:
        discard(item)
        return
    with jobs.contain_errors(item):
        match item:
            case FetchedBatches(is_stale=True):
                item.release()
            case FetchedBatches():
                pump.accept(item)
                if not pump.closed:  # a batch was fetched, so the trouble is over
                    pump.troubles.show(TroubleSource.FETCH, "")
            case LogGap() if skip is not None:
                skip(pump, item)
            case LogGap():
                _skip_gap(pump, item, jobs, report_incident)
            case _:
                _show_fetch_incident(pump, item, report_incident)


def hand_over(items: FetchedItems, accept: Callable[[FetchItem], None]) -> None:
    """Gives each item to `accept`. An error at one is logged, and costs no other."""
    for item in items.take():
        try:
            accept(item)
        except Exception:
            log.exception("a fetched item was not accepted", topic=item.topic, partition=item.partition)
            discard(item)


def discard(item: FetchItem) -> None:
    """Frees what was fetched and no pump takes."""
    if isinstance(item, FetchedBatches):
        item.release()


def _skip_gap(pump: Pump, gap: LogGap, jobs: JobRestarts, report_incident: ReportIncident) -> None:
    """Passes over lost offsets, and reports them. A job of a recreated topic starts in a new lineage."""
    if gap.begun_anew:
        next_offset = gap.resume_offset(pump.base)
        reset = LineageReset(pump.epoch, pump.lineage + 1, next_offset, gap.reason)
        jobs.restart_in_new_lineage(pump, reset)
        return
    pump.skip(gap)
    report_incident(
        "offsets-lost",
        str(pump.job),
        f"offsets [{gap.start}, {gap.end}) of {gap.topic}-{gap.partition} "
        f"were deleted before they were read: {gap.reason}",
        "lengthen the topic's retention, or find out why the consumer was that far behind",
    )


def _show_fetch_incident(pump: Pump, incident: FetchIncident, report_incident: ReportIncident) -> None:
    trouble = f"{FETCH_TROUBLE}{incident.message}; {incident.remedy}"
    pump.troubles.show(TroubleSource.FETCH, trouble)
    report_incident(
        "fetch-trouble", str(pump.job), incident.message, incident.remedy,
        until_closed(pump, lambda: pump.troubles.of(TroubleSource.FETCH) != trouble),
    )  # fmt: skip


def apply_fetch_state(pumps: Iterable[Pump], services: Sequence[FetchService]) -> None:
    """Takes the ends of partitions from the fetch services, and clears the fetch troubles that are over."""
    for pump in pumps:
        key = FetchKey(str(pump.job), pump.epoch)
        for service in services:
            pump.high_watermark = max(pump.high_watermark, service.high_watermark(key))
            if pump.troubles.of(TroubleSource.FETCH) and service.trouble(key) == "":
                pump.troubles.show(TroubleSource.FETCH, "")
