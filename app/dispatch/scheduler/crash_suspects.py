"""Sends suspects, messages that may have killed their receiver, a few at a time
(`app.dispatch.model.crash_suspicion`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.dispatch.scheduler.receiver_queues import ReceiverQueues
    from app.dispatch.scheduler.send_gate import SendGate

SUSPECT_POLL_INTERVAL_S = 0.1


def send_suspects(queues: ReceiverQueues, gate: SendGate, has_fresh: bool, now_s: float) -> None:
    """Sends the next suspects that may go together, once all earlier ones are answered. Checks again later
    while only the receiver's health can decide.

    Args:
        has_fresh: Fresh messages wait for this receiver, too.
    """
    suspects, out, receiver = queues.suspects, queues.suspects_out, queues.receiver
    if out:
        return
    queues.suspects_sent = 0
    while suspects and queues.suspects_sent < queues.suspects_most:
        first = suspects[0]
        assert first.suspicion is not None
        if first.pump.draining:
            suspects.popleft()
        elif first.pump.paused:
            first.pump.put_back(suspects.popleft())
        elif queues.held or (has_fresh and not receiver.closed):
            return  # other messages go first, and are better probes
        elif out and first.suspicion.goes_alone:
            return
        elif not first.suspicion.may_go(
            now_s, taken=receiver.taken, heard=receiver.heard, alone=not receiver.in_flight
        ):
            receiver.ask_health()
            gate.call_at(now_s + SUSPECT_POLL_INTERVAL_S)
            return
        elif gate.room(receiver, now_s):
            out.add(suspects.popleft())
            queues.suspects_sent += 1
            gate.start(first, receiver, now_s)
            if first.suspicion.goes_alone:
                return
        else:
            return
