"""Job ids: each has one text form, and any other text is refused with the reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kernel.job import MAX_PARTITION, JobId, Kind, names_a_job

names = st.from_regex(r"[A-Za-z0-9._/-]{1,40}", fullmatch=True)
topics = st.from_regex(r"[A-Za-z0-9._-]{1,40}", fullmatch=True)
jobs = st.builds(JobId, st.sampled_from(Kind), names, topics, st.integers(0, MAX_PARTITION))


def test_a_job_reads_as_it_stands_in_tables_and_logs() -> None:
    job = JobId(Kind.DISPATCH, "billing/orders", "orders", 3)
    assert str(job) == "dispatch:billing/orders:orders:3"
    assert JobId.parse("dispatch:billing/orders:orders:3") == job


@given(jobs)
def test_text_and_job_are_inverse(job: JobId) -> None:
    assert JobId.parse(str(job)) == job
    assert names_a_job(str(job))


@given(st.text(max_size=40) | st.from_regex(r"(dispatch|audit|x):[a:/ ]{0,3}:[b.]{0,3}:[-+0-9 ]{0,4}"))
def test_any_text_is_the_text_of_its_job_or_an_error(text: str) -> None:
    try:
        job = JobId.parse(text)
    except ValueError:
        assert not names_a_job(text)
        return
    assert str(job) == text
    assert names_a_job(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dispatch:orders:3", "has 3 parts; write it as kind:name:topic:partition"),
        ("copy:a:b:0", "unknown kind 'copy'; known: dispatch, replicate, audit"),
        ("DISPATCH:a:b:0", "unknown kind 'DISPATCH'"),
        ("audit:a:b:03", "has the partition '03'"),
        ("audit:a:b:-1", "has the partition '-1'"),
        ("audit:a:b:٣", "has the partition '٣'"),
        ("audit:a:b:2147483648", "partition 2147483648 is outside 0..2147483647"),
        ("audit::b:0", "job name '' must consist of"),
        ("audit:a b:b:0", "job name 'a b' must consist of"),
        ("audit:a:b/c:0", "job topic 'b/c' must consist of"),
        ("audit:a\n:b:0", "job name 'a.n' must consist of"),
        ("audit:a:" + "b" * 250 + ":0", "has 250 characters; at most 249"),
    ],
)
def test_text_that_is_no_job_is_refused_with_the_reason(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JobId.parse(text)
    assert not names_a_job(text)


def test_jobs_are_ordered_by_kind_name_topic_and_number() -> None:
    jobs = [JobId(Kind.AUDIT, "a", "t", 10), JobId(Kind.AUDIT, "a", "t", 9), JobId(Kind.AUDIT, "a", "s", 11)]
    assert [job.partition for job in sorted(jobs)] == [11, 9, 10]


def test_a_kind_from_plain_text_becomes_a_kind() -> None:
    assert JobId("audit", "a", "t", 0).kind is Kind.AUDIT  # type: ignore[arg-type]  # as JSON gives it
