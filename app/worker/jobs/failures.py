"""Delays the restarts of a job that fails again and again, and gives up the batch at which it fails.

A record may trigger an error that its authors did not foresee. The error then stops only its own job,
seldom, and an incident reports it. Pure.

Rules
1. Failures count together if they are at the same batch (or all at none), under the same epoch, and at
   most `FORGET_AFTER_S` apart.
2. Only failures at a batch give a batch up. It stays given up under this epoch, whatever else fails.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

MOST_FAILURES = 3  # at one batch, which is then given up
MOST_GIVEN_UP = 1_000  # batches of a job
FIRST_DELAY_S, MOST_DELAY_S = 0.5, 30.0
FORGET_AFTER_S = 300.0
NOWHERE = -1


@dataclass(frozen=True, slots=True)
class JobFailure:
    """A job failed `count` times in a row at offset `at` (a batch's first) or `NOWHERE`; monotonic times."""

    epoch: int
    at: int
    count: int
    why: str
    failed_s: float
    retry_at_s: float

    @property
    def words(self) -> str:
        where = "" if self.at == NOWHERE else f" at offset {self.at}"
        return f"its job failed {self.count} times{where}: {self.why}"


class JobFailures:
    def __init__(self) -> None:
        self._last: dict[str, JobFailure] = {}
        self._given_up: dict[str, tuple[int, dict[int, str]]] = {}  # job -> epoch, batches and why

    def failed(
        self, job: str, epoch: int, at: int, why: str, now_s: float, first_delay_s: float | None = None
    ) -> JobFailure:
        """Counts a failure, and returns its series. Two failures of one moment count once."""
        former = self._last.get(job)
        if former is not None and former.failed_s == now_s:
            return former
        count = 1
        if former is not None and (former.epoch, former.at) == (epoch, at):
            count += former.count if now_s - former.failed_s < FORGET_AFTER_S else 0
        first_s = FIRST_DELAY_S if first_delay_s is None else first_delay_s
        delay_s = min(MOST_DELAY_S, first_s * 2 ** min(count - 1, 20))
        failure = self._last[job] = JobFailure(epoch, at, count, why, now_s, now_s + delay_s)
        if count >= MOST_FAILURES and at != NOWHERE:
            given_up = dict(self.given_up(job, epoch))
            given_up[at] = failure.words
            self._given_up[job] = epoch, dict(list(given_up.items())[-MOST_GIVEN_UP:])
        return failure

    def has_ended(self, job: str, failure: JobFailure, now_s: float) -> bool:
        """Whether the failure's series has ended: it is forgotten, or the job is gone."""
        last = self._last.get(job)
        is_same = last is not None and (last.epoch, last.at) == (failure.epoch, failure.at)
        return last is None or not is_same or now_s - last.failed_s >= FORGET_AFTER_S

    def may_begin(self, job: str, epoch: int, now_s: float) -> bool:
        failure = self._last.get(job)
        return failure is None or failure.epoch != epoch or now_s >= failure.retry_at_s

    def given_up(self, job: str, epoch: int) -> Mapping[int, str]:
        """The base offsets of the batches that the job does not try again, and why."""
        of_epoch, given_up = self._given_up.get(job, (epoch, {}))
        return given_up if of_epoch == epoch else {}

    def forget(self, job: str) -> None:
        self._last.pop(job, None)
        self._given_up.pop(job, None)

    def keep(self, jobs: Collection[str]) -> None:
        self._last = {job: failure for job, failure in self._last.items() if job in jobs}
        self._given_up = {job: given_up for job, given_up in self._given_up.items() if job in jobs}
