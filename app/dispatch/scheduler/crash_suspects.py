"""Sends suspects, messages that may have killed their receiver, a few at a time
(`app.dispatch.model.crash_suspicion`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.dispatch.scheduler.receiver import ReceiverLink
    from app.dispatch.scheduler.workload import WorkloadRuntime

SUSPECT_POLL_INTERVAL_S = 0.1


def send_suspects(runtime: WorkloadRuntime, link: ReceiverLink, now_s: float) -> None:
    """Sends the next suspects that may go together, once all earlier ones are answered. Checks again later
    while only the receiver's health can decide."""
    suspects, out = link.suspects, link.suspects_out
    if out:
        return
    link.suspects_sent = 0
    while suspects and link.suspects_sent < link.suspects_most:
        first = suspects[0]
        assert first.suspicion is not None
        if first.pump.draining:
            suspects.popleft()
        elif first.pump.paused:
            first.pump.put_back(suspects.popleft())
        elif link.held or (runtime.scheduler and runtime.routing is None and not link.breaker.closed):
            return  # other messages go first, and are better probes
        elif out and first.suspicion.goes_alone:
            return
        elif not first.suspicion.may_go(
            now_s, taken=link.taken, heard=link.health.answers, alone=not link.in_flight
        ):
            link.health.ask()
            runtime.call_at(now_s + SUSPECT_POLL_INTERVAL_S)
            return
        elif runtime.room(link, now_s):
            out.add(suspects.popleft())
            link.suspects_sent += 1
            runtime.start(first, link, now_s)
            if first.suspicion.goes_alone:
                return
        else:
            return
