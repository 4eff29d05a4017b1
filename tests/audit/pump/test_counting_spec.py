"""A plan that also compares values: the verdict shows a value that was altered under the same id."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from app.audit.counts.counter import count_chunk
from app.audit.definition import AuditPlan
from app.audit.folds.comparison import ComparedBy, TierSide, WindowState, compare
from app.audit.folds.window import WindowPhase
from app.audit.pump.counting_spec import how_of
from switchyard.audit.model.fingerprint import NOTHING, FingerprintSource
from switchyard.audit.model.tally import Tally
from switchyard.audit.model.totals import NO_TOTALS, Totals
from tests.audit.api.plans import plan

SOURCE = FingerprintSource("c", "t", 0)
VALUES = {"header": "id", "fingerprint": "values"}
Row = tuple[int, bytes | None]  # id, value

rows = st.lists(
    st.tuples(st.integers(0, 30), st.none() | st.binary(max_size=3)),
    min_size=1, max_size=20, unique_by=lambda row: row[0],
)  # fmt: skip


def totals(some: list[Row], how: dict[str, Any], **headers: bytes) -> Totals:
    """A tier's counts of records with these ids and values, and further headers."""
    tally = Tally(1_000)
    counts = how_of(AuditPlan.model_validate(plan(id=how)), SOURCE)
    for name, value in some:
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
        ids = [("id", b"%d" % name)] if name >= 0 else []
        builder.append(0, timestamp=5, key=b"k", value=value, headers=[*ids, *headers.items()])
        count_chunk(tally, bytes(builder.build()), 0, counts)
    return tally.totals()[0]


def verdict_of(before: Totals, after: Totals) -> tuple[WindowState, ComparedBy]:
    first, second = (
        TierSide(name, one, NO_TOTALS, WindowPhase.CLOSED, 4_000, is_heard=True)
        for name, one in (("regional", before), ("aggregate", after))
    )
    verdict = compare(first, second, end_ms=1_000, now_ms=5_000, patience_ms=10)
    return verdict.state, verdict.by


@given(rows, st.data())
def test_a_value_that_was_altered_under_the_same_id_shows(some: list[Row], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(some) - 1))
    name, value = some[at]
    other = data.draw((st.none() | st.binary(max_size=3)).filter(lambda drawn: drawn != value))
    altered = [*some[:at], (name, other), *some[at + 1 :]]
    assert verdict_of(totals(some, VALUES), totals(altered, VALUES)) == (
        WindowState.CORRUPTED,
        ComparedBy.VALUES,
    )
    by_ids = {"header": "id"}
    assert verdict_of(totals(some, by_ids), totals(altered, by_ids))[0] is WindowState.OK, (
        "what ids alone say"
    )


@given(rows, st.randoms())
def test_the_same_in_another_order_and_with_other_headers_is_no_difference(
    some: list[Row], chance: Any
) -> None:
    """As after a route that adds or drops headers, or encodes batches again."""
    shuffled = list(some)
    chance.shuffle(shuffled)
    copied = totals(shuffled, VALUES, **{"switchyard-route": b"r"})
    assert verdict_of(totals(some, VALUES), copied) == (WindowState.OK, ComparedBy.VALUES)


def test_swapped_values_show() -> None:
    assert verdict_of(totals([(1, b"a"), (2, b"b")], VALUES), totals([(1, b"b"), (2, b"a")], VALUES)) == (
        WindowState.CORRUPTED, ComparedBy.VALUES,
    )  # fmt: skip


def test_sources_with_ids_alone_are_compared_by_ids() -> None:
    """Clients count so, and windows from before the plan had values."""
    some: list[Row] = [(1, b"a"), (2, b"b")]
    mixed = totals(some[:1], {"header": "id"}).plus(totals(some[1:], VALUES))
    for other in (totals(some, {"header": "id"}), mixed):
        assert verdict_of(totals(some, VALUES), other) == (WindowState.OK, ComparedBy.IDS)


def test_records_without_an_id_have_no_content_either() -> None:
    found = totals([(-1, b"a"), (2, b"b")], VALUES)
    assert (found.count, found.identified, found.contained) == (2, 1, 1)
    assert totals([(-1, b"a")], VALUES).contents == NOTHING


def test_parts_are_taken_out_of_sums_with_their_contents() -> None:
    some, more = totals([(1, b"a")], VALUES), totals([(1, b"a"), (2, b"b")], VALUES)
    assert some.plus(more.beyond(some)) == more


def test_the_fingerprint_is_of_ids_or_values() -> None:
    with pytest.raises(ValueError, match="ids"):
        AuditPlan.model_validate(plan(id={"header": "id", "fingerprint": "keys"}))
