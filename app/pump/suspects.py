"""Messages that may be to blame for the loss of their receiver: one at a time (`app.core.suspicion`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.pump.receiver import ReceiverLink
    from app.pump.workload import WorkloadRuntime

LOOK_S = 0.1


def send_suspect(runtime: WorkloadRuntime, link: ReceiverLink, now_s: float) -> None:
    """Sends the next of them, when it may go; looks again when only the receiver's health can tell."""
    suspects = link.suspects
    while suspects and link.suspect is None:
        first = suspects[0]
        if first.pump.draining:
            suspects.popleft()
        elif first.pump.paused:
            first.pump.put_back(suspects.popleft())
        elif link.held or (runtime.turns and not link.breaker.closed):
            return  # others go first, and are the better probes
        elif first.suspicion is not None and not first.suspicion.may_go(
            now_s, taken=link.taken, heard=link.health.answers, alone=not link.in_flight
        ):
            link.health.ask()
            runtime.call_at(now_s + LOOK_S)
            return
        elif runtime.room(link, now_s):
            link.suspect = suspects.popleft()
            runtime.start(link.suspect, link, now_s)
        else:
            return
