"""Counting: all calls that report records give the same figures, from any thread, and no input raises."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.audit import counter, recovery, topic_counts
from switchyard.audit.counter import Counting, Tier
from switchyard.audit.model import client_counter as core_client
from switchyard.audit.model.client_counter import ClientAudit
from switchyard.audit.model.fingerprint import ids_of, of_ids
from switchyard.audit.model.reports import Scope
from switchyard.audit.model.tally import window_of
from switchyard.audit.model.totals import Totals

TIER = Tier("consumer", "east", 100, "web@1", 1_000)


def pending_totals(counting_: Counting, topic: str = "orders") -> dict[int, Totals]:
    """The totals that the next report of a topic would have, by window."""
    counting_._reports(2_000_000_000_000)
    return {
        one.start_ms: one.totals
        for report in counting_._pending()
        if report.topic == topic
        for one in report.windows
    }


RECORDS = st.lists(
    st.tuples(st.integers(-1, 500), st.integers(0, 1_000), st.none() | st.binary(max_size=40)), max_size=40
)


@given(
    RECORDS, st.sampled_from(["sent", "sent_many", "handled", "handled_many"]), st.sampled_from([1, 3, 1024])
)
def test_every_way_of_counting_gives_the_same(
    records: list[tuple[int, int, bytes | None]], way: str, most_noted: int
) -> None:
    counted = Counting(TIER)
    patch = pytest.MonkeyPatch()
    patch.setattr(counter, "_FULL", most_noted * topic_counts.FIELDS)
    patch.setattr(topic_counts, "MOST_NOTED", most_noted)
    patch.setattr(topic_counts, "FEW_RECORDS", most_noted)
    times, sizes, names = ([record[field] for record in records] for field in range(3))
    if way == "sent_many":
        records = [(time, size, name or b"") for time, size, name in records]
    try:
        match way:
            case "sent":
                for record in records:
                    counted.sent("orders", *record)
            case "sent_many":
                counted.sent_many(
                    "orders", np.array(times, dtype=np.int64), sizes, [name or b"" for name in names]
                )  # type: ignore[misc]
            case "handled":
                for offset, record in enumerate(records):
                    assert counted.handled("orders", 3, offset, *record)
            case _:
                for _ in range(2):  # the second call repeats known offsets
                    counted.handled_many("orders", 3, range(len(records)), times, sizes, names)  # type: ignore[arg-type]
    finally:
        patch.undo()
    found = pending_totals(counted)
    assert {start: one.count for start, one in found.items()} == Counter(
        window_of(time, 100) for time, _, _ in records
    )
    for start, one in found.items():
        in_window = [record for record in records if window_of(record[0], 100) == start]
        named = [name for _, _, name in in_window if name is not None]
        assert one.nbytes == sum(size for _, size, _ in in_window)
        assert (one.identified, one.ids) == (len(named), of_ids(ids_of(named)))
    assert not counted._problems.now


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5),
    st.lists(st.integers(), max_size=3), st.just({}), st.just(object()),
)  # fmt: skip


@given(st.lists(st.tuples(ANYTHING, ANYTHING, ANYTHING, ANYTHING), max_size=8))
def test_no_argument_of_a_client_raises_and_valid_records_count(wrong: list[tuple[Any, ...]]) -> None:
    counted = Counting(TIER)
    for topic, time, size, name in wrong:
        counted.sent("orders", 250, 1, b"x")
        counted.sent("mixed", time, size, name)
        counted.sent(topic, time, size, name)
        counted.sent_many(topic, time, size, name)
        counted.sent_many("other", time, size, name)
        counted.handled("other", time, size, 5, 5, name)
        counted.handled(topic, time, size, name, time)
        counted.handled_many("other", time, size, name, time)
    recovery.encode(counted._snapshot((), has_left=False))
    found = pending_totals(counted)
    assert sum(one.count for one in found.values()) == len(wrong)
    for one in pending_totals(counted, "mixed").values():
        assert one.count >= 0
        assert one.nbytes >= 0


def test_uncountable_records_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    counted = Counting(TIER)
    for _ in range(3_000):
        counted.sent("orders", "yesterday", 10)  # type: ignore[arg-type]
        counted.sent("orders", 5, 10)
        counted.sent("no/topic", 5, 10)
    assert pending_totals(counted)[0].count == 3_000
    assert counted._books["orders"].uncounted == 3_000
    assert sorted(record.message.split(":")[1] for record in caplog.records) == [
        " records that cannot be counted", " topics that cannot be audited",
    ]  # fmt: skip


def test_threads_lose_no_record() -> None:
    counted = Counting(TIER)
    stopping = threading.Event()

    def send() -> None:
        for number in range(20_000):
            counted.sent("orders", number % 300, 1)

    def keep() -> None:
        while not stopping.is_set():
            counted._change(())

    threads = [threading.Thread(target=send) for _ in range(4)]
    keeper = threading.Thread(target=keep)
    for thread in (keeper, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    stopping.set()
    keeper.join()
    assert sum(one.count for one in pending_totals(counted).values()) == 80_000


def test_memory_is_bounded_by_topics_and_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter, "MOST_TOPICS", 3)
    monkeypatch.setattr(core_client, "MOST_WINDOWS", 10)
    monkeypatch.setattr(core_client, "MOST_EARLY", 1)
    counted = Counting(TIER)
    for number in range(5_000):
        counted.sent(f"topic-{number % 5}", 100 * number, 1)
        if number % 100 == 0:
            counted._change(())
    assert len(counted._books) == 3
    assert all(
        len(one.noted) < topic_counts.MOST_NOTED * topic_counts.FIELDS for one in counted._books.values()
    )
    found = pending_totals(counted, "topic-0")
    assert sum(one.count for one in found.values()) == 1_000
    assert len(found) < 80  # records in more windows count without a time
    assert found[-1].count > 900
    assert topic_counts.UNTIMED in counted._problems.now


def test_while_a_report_waits_counts_add_up() -> None:
    counted = Counting(TIER)
    for number in range(100):
        counted.sent("orders", 50, 1)
        counted._reports(1_000 + number)
    (first,) = counted._pending()
    assert first.windows[0].totals.count == 1
    counted._books["orders"].acknowledged(first)
    assert pending_totals(counted)[0].count == 99


def test_latencies_are_from_the_record_to_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counting(TIER)
    for now_s in (10.0, 20.0, 30.0):
        counted._now_s = lambda now_s=now_s: now_s  # type: ignore[misc]
        counted.sent("orders", 9_990, 1)
    assert pending_totals(counted)[9_900].percentiles_ms(0.3, 0.6, 1.0) == pytest.approx(
        [10, 10_010, 20_010], rel=0.02
    )


@pytest.mark.parametrize("wrong", [([5], 1), ([5, 6], 1), (5, [1]), ([5], [1])])
def test_lists_instead_of_numbers_are_left_out_and_reported(wrong: tuple[Any, Any]) -> None:
    counted = Counting(TIER)
    for _ in range(3):
        counted.sent("orders", *wrong)
    assert pending_totals(counted) == {}
    assert counted._books["orders"].uncounted == 3
    counted.sent("orders", *wrong)
    counted.sent("orders", 5, 1)
    counted._books["orders"].fold()
    counted._books["orders"].pending.clear()
    assert sum(one.count for one in pending_totals(counted).values()) == 1


def test_a_query_for_changes_during_a_fold_gets_them() -> None:
    """Otherwise `logged` would return true for records that are in no frame."""
    counted = Counting(TIER)
    counted.sent("orders", 100, 10)
    one = counted._books["orders"]
    one.all()
    found: list[Any] = []
    asks = threading.Thread(target=lambda: found.append(one.change()))

    class Noted(list[Any]):
        def __delitem__(self, key: Any) -> None:
            super().__delitem__(key)
            asks.start()
            asks.join(0.2)  # returns early if the query does not wait for the fold

    one.noted = Noted((100, 10, None, 1.0))
    one.fold()
    asks.join()
    assert found[0] is not None
    assert sum(pending_totals.count for pending_totals in found[0][0].windows.values()) == 2


def test_positions_of_a_topic_that_is_opened_while_all_is_written_are_kept() -> None:
    counted = Counting(TIER)
    counted._resume({"orders": {0: (7, 100), 1: (5, 100)}})
    counted.sent("payments", 100, 10)

    class Opens(topic_counts.TopicCounts):
        __slots__ = ()

        def all(self) -> Any:
            counted.handled("orders", 0, 7, 200, 10)
            return super().all()

    counted._books["payments"] = Opens(ClientAudit(Scope("payments", *TIER[:3]), "web@1", 1_000),
                                       "payments", {}, counted._problems)  # fmt: skip
    everything = counted._snapshot([], has_left=False)
    change = counted._change([])
    assert change is not None
    positions = recovery.read([recovery.encode(everything), recovery.encode(change)]).positions
    assert positions["orders"] == {0: (8, 200), 1: (5, 100)}
