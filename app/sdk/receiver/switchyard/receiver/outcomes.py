"""Collects the verdicts of deliveries into the ranges of a response."""

from __future__ import annotations

from collections import deque

import grpc

from switchyard.receiver.verdicts import (
    Failed,
    NoVerdict,
    Renew,
    Retry,
    Skip,
    Stash,
    Verdict,
    failure_text,
    plain_text,
)
from switchyard.v1.receiver_pb2 import DeliverResponse, Range, Results

_UNKNOWN: int = grpc.StatusCode.UNKNOWN.value[0]
_INTERNAL: int = grpc.StatusCode.INTERNAL.value[0]
MAX_MS = (1 << 32) - 1
MOST_OTHERS = 1_000  # in a response: at most 2 MiB, with 500 characters of reason each


class StreamOutcomes:
    """The outcomes that are not sent yet.

    Acknowledgements may come one by one in any order, and cost a list's append each.

    Args:
        may_renew: The sender knows `Renew`; otherwise it gets a `Retry`.

    Attributes:
        acknowledged: Numbers of acknowledged deliveries; fast paths append to it directly.
        others: The number of other outcomes.
    """

    __slots__ = ("_may_renew", "_ranges", "_results", "acknowledged", "others")

    def __init__(self, *, may_renew: bool = False) -> None:
        self._may_renew = may_renew
        self.acknowledged: list[int] = []
        self.others = 0
        self._ranges: list[tuple[int, int]] = []
        self._results: deque[tuple[int, Results]] = deque()  # count and results, for one response each

    @property
    def count(self) -> int:
        """The outcomes that are not sent yet; a range counts as one."""
        return len(self.acknowledged) + len(self._ranges) + self.others

    def acknowledge(self, start: int, end: int) -> None:
        """Acknowledges the deliveries [start, end)."""
        if start < end:
            self._ranges.append((start, end))

    def add(self, number: int, verdict: Verdict | Failed) -> None:
        """Adds the verdict of one delivery."""
        if isinstance(verdict, Failed):
            self.fail(number, number + 1, verdict.error)
        elif isinstance(verdict, Retry | Renew | Stash | Skip):
            results = self._others()
            span = Range(start=number, end=number + 1)
            if isinstance(verdict, Renew) and self._may_renew:
                timeout_ms = milliseconds(verdict.seconds)
                results.renewed.add(
                    deliveries=span, timeout_ms=timeout_ms, after_ms=milliseconds(verdict.after)
                )
            elif isinstance(verdict, Retry | Renew):
                results.retried.add(deliveries=span, after_ms=milliseconds(verdict.after))
            elif isinstance(verdict, Stash):
                results.stashed.add(deliveries=span, reason=plain_text(verdict.reason))
            else:
                results.skipped.append(span)
        else:
            self.acknowledged.append(number)

    def fail(self, start: int, end: int, error: BaseException) -> None:
        """Fails deliveries: their handler raised, or returned no verdict."""
        self._others().failed.add(
            deliveries=Range(start=start, end=end),
            code=_INTERNAL if isinstance(error, NoVerdict) else _UNKNOWN,
            message=failure_text(error),
        )

    def take_into(self, response: DeliverResponse) -> None:
        """Moves all acknowledgements and at most `MOST_OTHERS` other outcomes into `response`."""
        if self._results:
            count, results = self._results.popleft()
            response.results.CopyFrom(results)
            self.others -= count
        if self.acknowledged or self._ranges:
            add = response.results.acknowledged.add
            for start, end in merged(self.acknowledged, self._ranges):
                add(start=start, end=end)
        self.acknowledged, self._ranges = [], []

    def _others(self) -> Results:
        """The `Results` with room for one more outcome."""
        self.others += 1
        count, results = self._results.pop() if self._results else (0, Results())
        if count == MOST_OTHERS:
            self._results.append((count, results))
            count, results = 0, Results()
        self._results.append((count + 1, results))
        return results


def merged(numbers: list[int], ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same numbers and ranges as the fewest ranges, ascending."""
    joined: list[tuple[int, int]] = []
    if numbers:
        start, *rest = sorted(numbers)
        end = start + 1
        for number in rest:
            if number > end:
                joined.append((start, end))
                start = number
            end = number + 1
        joined.append((start, end))
    if not ranges:
        return joined
    spans, joined = sorted([*joined, *ranges]), []
    start, end = spans[0]
    for low, high in spans:
        if low > end:
            joined.append((start, end))
            start = low
        end = max(end, high)
    return [*joined, (start, end)]


def milliseconds(seconds: float | None) -> int:
    """A time as both contracts send it: 0 if there is none or it is not above 0, else at least 1."""
    if seconds is None or not seconds > 0:
        return 0
    return max(1, round(min(seconds * 1000, MAX_MS)))
