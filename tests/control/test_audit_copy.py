"""Copying again: where to, and when not; tests/system copies."""

from __future__ import annotations

from typing import Any

import pytest

from app.audit.prints import Window
from app.config.audit import AuditPlan
from app.control.audit_copy import targets
from app.control.audit_missing import Answer
from app.control.audit_sides import Copier, NotReadable, Question, Sides, Topic
from app.core.audit.missing import Bounds, Finding, Kind, Seen
from app.core.audit.origins import Partition
from tests.console.audited import plan

HERE = Partition("east-regional", "orders", 1)
THERE = Partition("east", "orders", 1)


def answer(**there: Any) -> Answer:
    """A record is missing in `east`, whose topic is as told."""
    counted = AuditPlan.model_validate(plan())
    client: Any = None
    upstream = Topic(HERE.cluster, HERE.topic, client, "e-r", "t1", 2, counted)
    downstream = Topic(THERE.cluster, THERE.topic, client, "e", "t2", 2, counted)._replace(**there)
    sides = Sides(
        Window(0, 600_000), [], [upstream], [downstream],
        [Copier(HERE.cluster, THERE.cluster, HERE.topic, THERE.topic)], Bounds(), [], {},
    )  # fmt: skip
    findings = [Finding(Kind.MISSING, Seen(HERE, 7, 1, 2, 3, 4))]
    question = Question("orders", "regional", "aggregate", 0)
    return Answer(question, sides.window, findings, {"missing": 1}, 1, 1, [], [], sides)


def test_a_record_goes_to_the_partition_of_the_same_number() -> None:
    assert targets(answer())[HERE].place == THERE


@pytest.mark.parametrize(
    ("there", "why"),
    [
        ({"is_compacted": True}, "is compacted: copied again, an old value would be the newest of its key"),
        ({"partitions": 1}, "give it as many as orders in east-regional has"),
    ],
)
def test_where_a_copy_would_do_harm_it_is_refused(there: dict[str, Any], why: str) -> None:
    with pytest.raises(NotReadable, match=why):
        targets(answer(**there))
