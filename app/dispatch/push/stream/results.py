"""A receiver's results for deliveries, as the results that unary calls would have had."""

from __future__ import annotations

from collections.abc import Iterator

from app.dispatch.model.crash_suspicion import NOT_SENT
from app.dispatch.push.call_result import CallResult
from app.kernel.grpc_status import CANCELLED, FAILED_PRECONDITION, OK, RESOURCE_EXHAUSTED, UNKNOWN
from switchyard.v1.receiver_pb2 import Range, Results

RENEW = 1  # of `features`: the receiver may ask for more time
MAX_REASON_CHARS = 500  # as the contract says

ACKNOWLEDGED = CallResult(OK)
SKIPPED = CallResult(OK, action="Skip")
UNSENT = CallResult(CANCELLED, NOT_SENT, local_error=NOT_SENT)  # this attempt does not count


def read_results(results: Results) -> Iterator[tuple[Range, CallResult]]:
    """Every range of delivery numbers, with its result."""
    for span in results.acknowledged:
        yield span, ACKNOWLEDGED
    for span in results.skipped:
        yield span, SKIPPED
    for retry in results.retried:
        reason = retry.reason[:MAX_REASON_CHARS] or "retry later"
        after_s = retry.after_ms / 1000 or None
        yield retry.deliveries, CallResult(RESOURCE_EXHAUSTED, reason, "Retry", retry_after_s=after_s)
    for renew in results.renewed:
        yield (
            renew.deliveries,
            CallResult(
                RESOURCE_EXHAUSTED,
                "the receiver asks for more time",
                "Renew",
                retry_after_s=renew.after_ms / 1000 or None,
                timeout_s=renew.timeout_ms / 1000 or None,
            ),
        )
    for stash in results.stashed:
        yield stash.deliveries, CallResult(FAILED_PRECONDITION, stash.reason[:MAX_REASON_CHARS], "Stash")
    for failure in results.failed:
        yield failure.deliveries, CallResult(failure.code or UNKNOWN, failure.message[:MAX_REASON_CHARS])


def too_large(size: int, limit: int | None) -> CallResult:
    """A message that the receiver does not take, in gRPC's words, so that it counts as such."""
    if limit is None:
        words = f"message exceeds the maximum configured message size: it has {size} bytes"
    else:
        words = f"message larger than max ({size} vs. {limit})"
    return CallResult(RESOURCE_EXHAUSTED, words)
