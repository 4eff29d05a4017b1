"""Sends notices. Each channel has a lane, so a channel that is down delays neither others nor the monitor.

Rules
1. Only the newest notice of an alert waits. A lane holds `MOST_WAITING` at most. The monitor offers others
   again later, because the control log says that the channel did not take them.
2. A notice that the channel did not take waits for the lane's backoff, behind those that wait already.
3. A lane never sends a delivered notice again, even before the control log records it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import structlog

from app.alerts.channel_definition import Channel
from app.alerts.delivery.notice import AlertNotice
from app.alerts.delivery.sender import NoticeSender, NotTaken
from app.alerts.rules import NoticeOutcome
from app.kernel.backoff import Backoff
from app.kernel.clock import now_ms
from app.kernel.incidents import ReportIncident

log = structlog.get_logger(__name__)

MOST_WAITING = 1_000
FAILURES_BEFORE_INCIDENT = 3  # failures in a row that are no hiccup
BACKOFF = Backoff(base_s=1.0, cap_s=60.0)


@dataclass(slots=True)
class ChannelLane:
    """A channel's notices.

    Attributes:
        failures: Failures in a row. why: the reason of the last one; "" if the channel takes notices.
        waiting: By alert. sending: the alert and number of the notice that is being sent.
        numbers: By alert, the last notice that the channel took; sent_s: when, by the monotonic clock.
    """

    key: str
    place: str
    waiting: dict[str, tuple[Channel, AlertNotice]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    sent_s: dict[str, float] = field(default_factory=dict)
    sending: tuple[str, int] | None = None
    failures: int = 0
    why: str = ""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class NoticeDeliveries:
    """All lanes. `counts`: attempts by rule, channel, and "taken" or "failed"."""

    def __init__(
        self, sender: NoticeSender, report_incident: ReportIncident, backoff: Backoff = BACKOFF
    ) -> None:
        self.lanes: dict[str, ChannelLane] = {}
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self._sender = sender
        self._report_incident = report_incident
        self._backoff = backoff
        self._outcomes: list[NoticeOutcome] = []

    def offer(self, channel: Channel, notice: AlertNotice, *, again: bool = False) -> None:
        """Takes a notice to be sent. One that the channel took before is sent only if `again`."""
        lane = self.lanes.setdefault(channel.key, ChannelLane(channel.key, channel.place))
        if not again and lane.numbers.get(notice.id, 0) >= notice.number:
            return
        if lane.sending == (notice.id, notice.number):
            return
        if notice.id not in lane.waiting and len(lane.waiting) >= MOST_WAITING:
            return
        lane.waiting[notice.id] = channel, notice
        lane.wake.set()
        if lane.task is None or lane.task.done():
            lane.task = asyncio.get_running_loop().create_task(self._run(lane))

    def sent_s(self, channel: Channel, alert: str) -> float:
        """When a channel last took a notice of an alert, by the monotonic clock."""
        lane = self.lanes.get(channel.key)
        return float("-inf") if lane is None else lane.sent_s.get(alert, float("-inf"))

    def take_outcomes(self) -> list[NoticeOutcome]:
        """The outcomes of notices since the last call."""
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def give_back(self, outcomes: list[NoticeOutcome]) -> None:
        """Keeps outcomes that could not be written to the control log."""
        self._outcomes = outcomes + self._outcomes

    def keep(self, channels: Collection[str], alerts: Collection[str]) -> None:
        """Forgets all other channels and alerts; their notices are not sent any more."""
        for key, lane in list(self.lanes.items()):
            for known in (lane.waiting, lane.numbers, lane.sent_s):
                for gone in known.keys() - set(alerts):
                    del known[gone]
            if key not in channels:
                if lane.task is not None:
                    lane.task.cancel()
                del self.lanes[key]

    def rest(self) -> None:
        """Drops all notices, since another worker leads."""
        for lane in self.lanes.values():
            lane.waiting.clear()
            lane.failures, lane.why = 0, ""
        self._outcomes.clear()

    async def stop(self) -> None:
        """Stops all lanes. The control log has the notices that wait."""
        tasks = [lane.task for lane in self.lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self._sender.close()

    async def _run(self, lane: ChannelLane) -> None:
        while True:
            while not lane.waiting:
                lane.wake.clear()
                await lane.wake.wait()
            alert = next(iter(lane.waiting))
            channel, notice = lane.waiting.pop(alert)
            lane.sending = alert, notice.number
            try:
                await self._sender.send(channel, notice)
            except NotTaken as error:
                pause_s = self._failed(lane, channel, notice, str(error), error.after_s)
            except Exception as error:
                log.exception("a notice failed", channel=lane.key, alert=alert)
                pause_s = self._failed(lane, channel, notice, type(error).__name__, 0.0)
            else:
                self._took(lane, notice)
                pause_s = 0.0
            finally:
                lane.sending = None
            await asyncio.sleep(pause_s)

    def _took(self, lane: ChannelLane, notice: AlertNotice) -> None:
        if lane.failures >= FAILURES_BEFORE_INCIDENT:
            log.info("a channel of alerts takes notices again", channel=lane.key, place=lane.place)
        lane.failures, lane.why = 0, ""
        lane.numbers[notice.id] = max(notice.number, lane.numbers.get(notice.id, 0))
        lane.sent_s[notice.id] = time.monotonic()
        self.counts[notice.state.rule, lane.key, "taken"] += 1
        self._outcomes.append(NoticeOutcome(notice.id, lane.key, notice.number, now_ms()))

    def _failed(
        self, lane: ChannelLane, channel: Channel, notice: AlertNotice, why: str, after_s: float
    ) -> float:
        """The lane's pause after a failure, in seconds."""
        lane.waiting.setdefault(notice.id, (channel, notice))  # unless a newer one has come; the last now
        lane.failures += 1
        if lane.failures >= FAILURES_BEFORE_INCIDENT and (
            lane.failures == FAILURES_BEFORE_INCIDENT or why != lane.why
        ):
            self._outcomes.append(NoticeOutcome(notice.id, lane.key, notice.number, now_ms(), why))
        lane.why = why
        self.counts[notice.state.rule, lane.key, "failed"] += 1
        if lane.failures == FAILURES_BEFORE_INCIDENT:
            self._report_incident(
                "alert-channel-down", f"{notice.state.rule}/{channel.kind}", f"{lane.place} {why}",
                "no notice arrives there until it takes them; try: "
                f"switchyard alert test {notice.state.rule}",
                lambda: not lane.failures or not lane.waiting or self.lanes.get(lane.key) is not lane,
            )  # fmt: skip
        return max(after_s, self._backoff.delay_s(lane.failures, random.random()))  # noqa: S311 - no secret
