"""Ends messages wherever they are, as an operator or the head-of-line detector decided.

A batch that cannot be decoded is stashed here too, as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.dispatch.model.outcome import DeliveryDecision
    from app.dispatch.pump.delivery import DeliveryPump
    from app.kafka.fetch.decoder import UndecodableBatch


def finish_by_operator(pump: DeliveryPump, offset: int, decision: DeliveryDecision) -> bool:
    """Ends the message at `offset`, and gives up its call and its retries.

    Returns False if the message is finished, is being copied, or was not read yet.
    """
    if pump.closed or offset in pump.copying:
        return False
    call = pump.calls.get(offset)
    if call is not None:
        call.verdict = decision
        pump.tracker.cancel(offset)
        call.cancel()  # its result, whatever it is, carries the decision out
        return True
    delivery = pump.remove_waiting(offset)
    if delivery is None:
        return _in_batch(pump, offset, decision)
    pump.tracker.cancel(offset)
    delivery.verdict = decision
    pump.runtime.carry_out(delivery, decision)
    return True


def stash_batch(pump: DeliveryPump, error: UndecodableBatch, shown: list[tuple[int, int]]) -> None:
    """Moves the batch to the DLQ, then finishes its offset ranges in `shown`."""

    def finished() -> None:
        for start, end in shown:
            pump.tracker.nack_range(start, end)
        pump.dead_lettered += 1
        pump.stashed(error)

    pump.runtime.stash_batch(pump, error, finished)


def _in_batch(pump: DeliveryPump, offset: int, decision: DeliveryDecision) -> bool:
    for batch in pump.batches:
        index = batch.find(offset)
        if index is not None and pump.tracker.cancel(offset):
            batch.verdicts[offset] = decision
            batch.cancel(index, index + 1)
            return True
    return False
