"""The status of a replica: in heartbeats, and as incidents when it makes no progress."""

from __future__ import annotations

from app.controllog.codec import CopyingStatus, JobStatus
from app.kafka.records.verbatim_copy import DELETE_HORIZON, Bytes
from app.kernel.clock import now_ms
from app.kernel.troubles import TroubleSource
from app.replicate.destination.copy_headers import ORIGIN
from app.replicate.destination.session import NOT_SAVED
from app.replicate.pump.partition import MAX_TIMESTAMP, ReplicaPump

ATTRIBUTES, FIRST_TIMESTAMP = slice(21, 23), slice(27, 35)  # in a batch's header
STALLED_AFTER_S = 30.0
UNREAD_S = 120.0  # a transaction may be open for this long
LEFT_OUT_REPORT_INTERVAL_S = 3600.0  # between reports of records that are left out


def trouble_of(pump: ReplicaPump) -> str:
    """Why the replica makes no progress, or less than it could; "": it does."""
    return pump.lost or pump.halted or pump.blocked_batch.why or pump.troubles.words or pump.session.why


def job_status(pump: ReplicaPump) -> JobStatus:
    """The status for heartbeats."""
    halted = pump.halted
    state = "closed" if pump.closed else "halted" if halted else "paused" if pump.paused else "flowing"
    return JobStatus(
        job=str(pump.job), epoch=pump.epoch, state="draining" if pump.draining else state,
        committed=pump.base, fetched=pump.intake.expected, high_watermark=pump.high_watermark,
        in_flight=pump.in_flight, unfinished=pump.in_flight, oldest_ms=_oldest_ms(pump),
        delivered=pump.ledger.delivered,
        trouble=trouble_of(pump),
        buffered_bytes=sum(fetched.nbytes for fetched in pump.intake.held),
    )  # fmt: skip


def copying_status(pump: ReplicaPump) -> CopyingStatus:
    job, verifier, stuck, ledger = pump.job, pump.runtime.verifier, pump.stuck, pump.ledger
    return CopyingStatus(
        halted=pump.halted or "",
        stuck=stuck[0] if stuck else None,
        encoded=pump.encoded,
        left_out=0 if pump.edit is None else pump.edit.rounds,
        lost=ledger.lost,
        lost_ms=ledger.lost_ms,
        compared=verifier.compared[job],
        differing=verifier.differing[job],
        uncompared=verifier.uncompared[job],
        begun_anew=ledger.begun_anew,
        destination_losses=pump.session.losses,
        limited=pump.limited,
        barrier=pump.barrier,
    )


def _oldest_ms(pump: ReplicaPump) -> int:
    """When the first record that is not copied was written; -1: there is none, or none is known. Records that
    are not fetched count as old as the last copied record, though they may be younger."""
    head, held = pump.ledger.head, pump.intake.held
    oldest_ms = pump.copied_ms if pump.halted or 0 <= pump.base < pump.high_watermark else -1
    if head is not None:
        oldest_ms = _first_ms(head.data, oldest_ms)
    elif held and not held[0].damage:
        oldest_ms = _first_ms(held[0].data, oldest_ms)
    return min(now_ms(), oldest_ms)


def _first_ms(data: Bytes, else_ms: int) -> int:
    """When the first record of a batch was written, if its header says so. With a delete horizon, that field
    holds the time at which tombstones may be removed."""
    if len(data) < MAX_TIMESTAMP.stop:
        return else_ms
    horizon = int.from_bytes(data[ATTRIBUTES], signed=True) & DELETE_HORIZON
    return int.from_bytes(data[MAX_TIMESTAMP if horizon else FIRST_TIMESTAMP], signed=True)


def check_progress(pump: ReplicaPump, now_s: float) -> None:
    """Reports a replica without progress that may send, and left-out records. Called on a timer."""
    _report_left_out(pump, now_s)
    has_records = pump.in_flight > 0 or not pump.intake.is_empty
    unread = not has_records and pump.intake.expected < pump.high_watermark
    is_reported = pump.halted or pump.troubles.of(TroubleSource.FETCH)
    may_send = not (pump.paused or pump.limited) and (has_records or (unread and not is_reported))
    if not (may_send or pump.in_flight):
        pump.ledger.progress_s, pump.is_stall_reported = now_s, False
    elif not pump.runtime.lease.holds(now_s):
        pump.ledger.progress_s = now_s
    elif (
        now_s - pump.ledger.progress_s > (UNREAD_S if unread else STALLED_AFTER_S)
        and not pump.is_stall_reported
    ):
        pump.is_stall_reported = True
        _report_stalled(pump, unread)


def _report_left_out(pump: ReplicaPump, now_s: float) -> None:
    reported, at_s = pump.reported_rounds
    if pump.edit is None or pump.edit.rounds == reported or now_s - at_s < LEFT_OUT_REPORT_INTERVAL_S:
        return
    pump.reported_rounds = pump.edit.rounds, now_s
    pump.report_incident(
        "records-left-out",
        f"{pump.where}: {pump.edit.rounds - reported} records were not copied, the last of them at offset "
        f"{pump.edit.last_round}: by their header {ORIGIN} they have already been at the destination",
        f"find the producer that writes them; one that forwards records which it has read must drop {ORIGIN}",
    )


def _report_stalled(pump: ReplicaPump, unread: bool) -> None:
    why = pump.blocked_batch.why or pump.session.why or "the destination does not answer"
    message = f"nothing was acknowledged for {STALLED_AFTER_S:.0f} s: {why}"
    remedy = "check that the destination's brokers run and have enough replicas in sync"
    if pump.blocked_batch.why:
        remedy = "do what the reason says; switchyard route describe shows what waits"
    if why == NOT_SAVED:
        remedy = "check the control cluster and the workers' leader"
    elif unread:
        message = (
            f"for {UNREAD_S:.0f} s nothing of [{pump.intake.expected}, {pump.high_watermark}) was fetched: a "
            "transaction may be open there that its producer does not end, or this worker's memory is used up"
        )
        remedy = "find it by kafka-transactions.sh find-hanging and abort it, or give the worker more memory"
    pump.report_incident(
        "replica-no-progress", f"{pump.where}, at {pump.base}: {message}", remedy,
        lambda: not pump.is_stall_reported,
    )  # fmt: skip
