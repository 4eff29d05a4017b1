"""A job that fails at the same batch restarts after longer and longer waits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.worker.jobs.failures import (
    FIRST_DELAY_S,
    FORGET_AFTER_S,
    MOST_DELAY_S,
    MOST_FAILURES,
    NOWHERE,
    JobFailures,
)

EPOCH = 3


def test_a_job_that_fails_at_one_batch_waits_longer_each_time_and_then_dead_letters_it() -> None:
    failures, now_s, waits = JobFailures(), 0.0, []
    for count in range(1, 30):
        failure = failures.failed("j", EPOCH, 7, "boom", now_s)
        assert failure is failures.failed("j", EPOCH, 7, "boom", now_s), "the same failure, reported twice"
        assert failure.count == count
        assert list(failures.given_up("j", EPOCH)) == [7] * (count >= MOST_FAILURES)
        assert not failures.may_begin("j", EPOCH, now_s)
        assert failures.may_begin("j", EPOCH, failure.retry_at_s)
        waits.append(failure.retry_at_s - now_s)
        now_s = failure.retry_at_s
    assert waits[:3] == [FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S]
    assert max(waits) == waits[-1] == MOST_DELAY_S
    assert failures.may_begin("another", EPOCH, 0.0)
    assert failures.may_begin("j", EPOCH + 1, 0.0), "another owner may try again"
    assert failures.given_up("j", EPOCH + 1) == {}
    for count in range(1, MOST_FAILURES + 1):
        assert list(failures.given_up("j", EPOCH)) == [7], (
            "the batch stays given up, whatever fails behind it"
        )
        assert failures.failed("j", EPOCH, 8, "boom", now_s + count).count == count
    assert list(failures.given_up("j", EPOCH)) == [7, 8]
    failures.forget("j")
    assert failures.given_up("j", EPOCH) == {}


def test_a_failure_without_a_batch_waits_and_gives_nothing_up() -> None:
    failures = JobFailures()
    for now_s in range(5):
        failure = failures.failed("j", EPOCH, NOWHERE, "boom", now_s, first_delay_s=2.0)
    assert failure.retry_at_s == 4 + MOST_DELAY_S
    assert failures.given_up("j", EPOCH) == {}
    failures.forget("j")
    assert failures.may_begin("j", EPOCH, 4)


def test_an_old_failure_does_not_count() -> None:
    failures = JobFailures()
    failures.failed("j", EPOCH, 7, "boom", 0.0)
    assert failures.failed("j", EPOCH, 7, "boom", FORGET_AFTER_S - 1).count == 2
    assert failures.failed("j", EPOCH, 7, "boom", 2 * FORGET_AFTER_S).count == 1


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(1, 2)), max_size=30))
def test_only_failures_in_a_row_at_one_batch_of_one_epoch_count(what: list[tuple[str, int, int]]) -> None:
    failures, rows = JobFailures(), dict[str, list[tuple[int, int]]]()
    for now_s, (job, at, epoch) in enumerate(what):
        rows.setdefault(job, []).append((epoch, at))
        found = failures.failed(job, epoch, at, "", float(now_s))
        row = rows[job]
        in_a_row = next((n for n, one in enumerate(reversed(row)) if one != row[-1]), len(row))
        assert found.count == in_a_row
    failures.keep(["a"])
    assert failures.may_begin("b", 1, 0.0)
    assert failures.may_begin("b", 2, 0.0)
