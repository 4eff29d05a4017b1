"""Each worker's share of a limit, as the worker derives it from the control log."""

from __future__ import annotations

from app.controllog.events import Assignment, Claim
from app.controllog.state import ControlState
from app.kernel.job import JobId, Kind
from app.placement.limit_divider import shares_of

KEY, TOPIC = "billing/orders", "orders"
RETRY = "orders__billing__retry_1", "orders__billing__retry_2"


def test_catching_up_is_shared_by_the_partitions_of_the_topic_and_not_by_idle_retry_jobs() -> None:
    state = ControlState()
    assert state.apply(Claim(at_ms=0, term=1, worker="one"))
    for worker, topic in (("one", TOPIC), ("two", RETRY[0]), ("three", RETRY[1])):
        job = str(JobId(Kind.DISPATCH, KEY, topic, 0))
        assert state.apply(Assignment(at_ms=0, job=job, worker=worker, epoch=1, term=1, reason=""))

    found = {worker: shares_of(state, worker)[KEY] for worker in ("one", "two", "three")}

    assert [found[worker].topic for worker in found] == [1.0, 0.0, 0.0]
    assert sum(share.jobs for share in found.values()) == 1.0
    assert shares_of(state, "nobody") == {}
