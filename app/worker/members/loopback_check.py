"""Refuses a loopback address to a worker once a worker of another host or container runs.

On another host a loopback URL leads to another process: answers would be missing, or come from a wrong
worker. A worker that starts with one ends as soon as it hears a worker of another host for `PERSISTS_S`: one
record may be left over. Heartbeats without a seal may be forged, so they end no worker. For these, and for a
worker that already runs jobs when the first such worker starts, an incident says so, and the jobs stay.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import structlog
from mode import Service

from app.config.web_address import is_loopback
from app.controllog.codec import Heartbeat
from app.kernel.incidents import ReportIncident
from app.worker.members.membership import DRAINING, Members

log = structlog.get_logger(__name__)

LOOPBACK_POLL_INTERVAL_S = 0.5
# workers send a heartbeat every half second, and this one starts to read them within seconds
HEARTBEATS_GRACE_S = 10.0
PERSISTS_S = 1.0
REMEDY = (
    "set web.host to an address that other hosts reach (0.0.0.0: every one), or web.advertise to the address "
    "or URL by which they reach this worker"
)


class NotReachable(Exception):
    """This worker announces an address that other workers cannot reach; with the remedy."""


def apart(place: str, url: str, beats: Mapping[str, Heartbeat]) -> str:
    """A running worker on another host than `place`, which cannot reach the loopback `url`; "" for none.

    Workers without a place are of an older version; they do not count.
    """
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return ""
    if not place or not is_loopback(host):
        return ""
    others = (w for w, beat in beats.items() if beat.place not in {"", place} and beat.state != DRAINING)
    return min(others, default="")


class LoopbackCheck(Service):
    """`place`: this worker's, as in its heartbeats."""

    def __init__(
        self,
        place: str,
        url: str,
        members: Members,
        report_incident: ReportIncident,
    ) -> None:
        super().__init__()
        self._place = place
        self._url = url
        self._members = members
        self._report_incident = report_incident
        self._is_unreachable = False

    @Service.task
    async def _check(self) -> None:
        started_s = time.monotonic()
        first_ms: dict[tuple[str, str], int] = {}
        while not self.should_stop:
            now_s = time.monotonic()
            live = self._members.live(now_s)
            first_ms = {(w, b.place): first_ms.get((w, b.place), b.at_ms) for w, b in live.items()}
            lasting = {w: b for w, b in live.items() if b.at_ms - first_ms[w, b.place] >= PERSISTS_S * 1000}
            other = apart(self._place, self._url, lasting)
            why = f"this worker announces {self._url}, which {other} on another host cannot reach"
            sealed = {w: beat for w, beat in lasting.items() if w not in self._members.unsealed}
            if now_s - started_s < HEARTBEATS_GRACE_S and apart(self._place, self._url, sealed):
                log.critical(why, remedy=REMEDY)
                raise NotReachable(f"{why}; {REMEDY}")
            was_reported, self._is_unreachable = self._is_unreachable, bool(other)
            if other and not was_reported:
                remedy = f"{REMEDY}; then start it again"
                self._report_incident(
                    "loopback-address", self._url, why, remedy, lambda: not self._is_unreachable
                )
            await self.sleep(LOOPBACK_POLL_INTERVAL_S)
