"""A receiver's results for deliveries, as the results that unary calls would have had."""

from __future__ import annotations

from collections.abc import Iterator

from app.dispatch.model.crash_suspicion import NOT_SENT
from app.dispatch.push.unary import CallResult
from app.kernel.grpc_status import CANCELLED, FAILED_PRECONDITION, OK, RESOURCE_EXHAUSTED, UNKNOWN
from switchyard.v1.receiver_pb2 import Range, Results

MAX_REASON_CHARS = 500


class StreamResult(CallResult):
    """A delivery's result; its details are shorter than a call's."""

    __slots__ = ()

    def __init__(
        self,
        code: int,
        details: str = "",
        action: str | None = None,
        *,
        retry_after_s: float | None = None,
        local_error: str | None = None,
    ) -> None:
        details = details[:MAX_REASON_CHARS]
        super().__init__(code, details, action, local_error=local_error, retry_after_s=retry_after_s)


ACKNOWLEDGED = StreamResult(OK)
SKIPPED = StreamResult(OK, action="Skip")
UNSENT = StreamResult(CANCELLED, NOT_SENT, local_error=NOT_SENT)  # this attempt does not count


def read_results(results: Results) -> Iterator[tuple[Range, StreamResult]]:
    """Every range of delivery numbers, with its result."""
    for span in results.acknowledged:
        yield span, ACKNOWLEDGED
    for span in results.skipped:
        yield span, SKIPPED
    for retry in results.retried:
        after_s = retry.after_ms / 1000 if retry.after_ms else None
        yield (
            retry.deliveries,
            StreamResult(RESOURCE_EXHAUSTED, retry.reason or "retry later", "Retry", retry_after_s=after_s),
        )
    for stash in results.stashed:
        yield stash.deliveries, StreamResult(FAILED_PRECONDITION, stash.reason, "Stash")
    for failure in results.failed:
        yield failure.deliveries, StreamResult(failure.code or UNKNOWN, failure.message)


def too_large(size: int, limit: int | None) -> StreamResult:
    """A message that the receiver does not take, in gRPC's words, so that it counts as such."""
    if limit is None:
        words = f"message exceeds the maximum configured message size: it has {size} bytes"
    else:
        words = f"message larger than max ({size} vs. {limit})"
    return StreamResult(RESOURCE_EXHAUSTED, words)
