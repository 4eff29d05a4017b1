"""The time since which a partition takes no writes: a success ends it, and so does a time without writes."""

from __future__ import annotations

from aiokafka.errors import KafkaTimeoutError, MessageSizeTooLargeError, NotEnoughReplicasError
from hypothesis import given
from hypothesis import strategies as st

from app.worker.tracker.write_health import FORGET_AFTER_S, ProbeFailure, WriteHealth


def test_the_oldest_trouble_has_its_last_error() -> None:
    health = WriteHealth()
    health.began(3, 1.0)
    health.began(5, 2.0)
    health.ended(3, 1.5, MessageSizeTooLargeError())
    health.began(3, 10.0)
    trouble = health.trouble(40.0)
    assert trouble is not None
    assert (trouble.partition, trouble.since_s, "MessageSizeTooLarge" in trouble.why) == (3, 1.0, True)
    health.ended(3, 41.0)
    trouble = health.trouble(41.0)
    assert trouble is not None
    assert (trouble.partition, trouble.since_s, trouble.why) == (5, 2.0, "")


def test_a_slow_topic_is_no_trouble() -> None:
    health = WriteHealth()
    for at in range(100):
        health.began(0, at)
        if at:
            health.ended(0, at + 0.5)  # the one before
        trouble = health.trouble(at + 0.9)
        assert trouble is None or at + 0.9 - trouble.since_s <= 1.0


def test_a_partition_without_writes_is_no_trouble() -> None:
    health = WriteHealth()
    health.began(0, 0.0)
    health.ended(0, 1.0, MessageSizeTooLargeError())
    assert health.trouble(1.0 + FORGET_AFTER_S) is not None
    assert health.trouble(1.1 + FORGET_AFTER_S) is None
    health.began(0, 60.0)
    trouble = health.trouble(61.0)
    assert trouble is not None
    assert trouble.since_s == 60.0


def test_an_outage_of_the_whole_cluster_does_not_count() -> None:
    health = WriteHealth()
    health.began(0, 0.0)
    health.began(1, 0.0)
    health.ended(1, 1.0, NotEnoughReplicasError())
    health.begin_again(100.0)
    trouble = health.trouble(101.0)
    assert trouble is not None
    assert (trouble.partition, trouble.since_s) == (0, 100.0)
    health.abandoned(0)
    assert health.trouble(101.0) is None


def test_only_a_permanent_error_is_a_refusal() -> None:
    assert ProbeFailure.of(0, MessageSizeTooLargeError()).is_refusal
    for error in (NotEnoughReplicasError(), KafkaTimeoutError(), OSError(), TimeoutError()):
        assert not ProbeFailure.of(0, error).is_refusal


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["taken", "failed", "left"])), max_size=30))
def test_a_trouble_is_no_older_than_the_last_success_of_its_partition(writes: list[tuple[int, str]]) -> None:
    health, now_s, taken_s = WriteHealth(), 0.0, dict[int, float]()
    for partition, how in writes:
        health.began(partition, now_s)
        now_s += 0.1
        if how == "taken":
            health.ended(partition, now_s)
            taken_s[partition] = now_s
        elif how == "failed":
            health.ended(partition, now_s, MessageSizeTooLargeError())
        else:
            health.abandoned(partition)
        trouble = health.trouble(now_s)
        assert trouble is None or trouble.since_s >= taken_s.get(trouble.partition, 0.0)
        assert how != "failed" or trouble is not None
