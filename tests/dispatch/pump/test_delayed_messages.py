"""Messages that wait for their time are examined once, bounded in bytes, and copied before their topic drops
them.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.dispatch.model.delayed_delivery import level_of, not_before_ms
from app.dispatch.model.outcome import Action, DeliveryDecision
from tests.dispatch.pump.rig import DispatchRig, definition, dispatch_rig, numbers
from tests.dispatch.pump.test_far_future import DAY_MS, HOUR_MS, not_before, now_ms

MIB = 1024 * 1024


async def test_many_bytes_that_are_due_within_seconds_are_examined_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def look(*args: Any) -> tuple[int | None, str]:
        nonlocal looks
        looks += 1
        return not_before_ms(*args)

    monkeypatch.setattr("app.dispatch.pump.ready_queue.not_before_ms", look)
    async with dispatch_rig(lambda _: None, target={"contract": "unary"}) as rig:
        pump = rig.pump()
        for _ in range(4):
            rig.feed(pump, [(None, bytes(500_000))] * 10, headers=not_before(now_ms() + 8_000))
        rig.feed(pump, numbers(200))
        await rig.until(lambda: pump.delivered >= 200)
        assert len(pump._queue.delayed) == 40
        await rig.idle()

        assert looks == 40
        assert not rig.copied.records


async def test_a_message_that_no_topic_takes_does_not_keep_others_from_being_copied() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        rig.copied.most_bytes = 1_000
        pump = rig.pump(capacity=100)
        headers = not_before(now_ms() + HOUR_MS)
        rig.feed(pump, [(None, bytes(2_000))] * 5, headers=headers)
        rig.feed(pump, numbers(300, 5), headers=headers)
        rig.feed(pump, numbers(400, 305))
        await rig.until(lambda: pump.delivered == 400)

        assert len(rig.seen) == 400
        assert pump.troubles.words == ""
        assert pump.tracker.base == 0
        assert pump.tracker.unfinished <= 100
        assert len(rig.copied.records) >= 205


async def test_a_delayed_topic_that_takes_no_copies_stops_no_other_message_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.dispatch.pump.delayed_messages.COPY_RETRY_MS", 2_000)
    async with dispatch_rig(lambda _: None) as rig:
        rig.copied.refuse = True
        pump = rig.pump(capacity=100)
        rig.feed(pump, numbers(2), headers=not_before(now_ms() + 2 * HOUR_MS))
        rig.feed(pump, numbers(400, 2))
        await rig.until(lambda: pump.delivered == 400)

        assert pump.tracker.base == 0
        assert pump.finish_by_operator(0, DeliveryDecision(Action.ACK, None, 0.0, ""))
        rig.copied.refuse = False
        rig.feed(pump, numbers(90, 402), headers=not_before(now_ms() + 2 * HOUR_MS))
        await rig.until(lambda: pump.tracker.base == 492)
        assert len(rig.copied.records) == 91


async def test_an_internal_fault_while_copying_is_reported_and_leaves_only_its_message_unfinished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, faulty = level_of, True

    def level(*args: Any) -> int | None:
        if faulty:
            raise ZeroDivisionError("ours")
        return real(*args)

    monkeypatch.setattr("app.dispatch.pump.retry_publisher.level_of", level)
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump(capacity=20)
        rig.feed(pump, numbers(1), headers=not_before(now_ms() + DAY_MS + 60_000))
        await rig.until(lambda: "a fault of Switchyard's own" in pump.troubles.words)
        assert pump.tracker.base == 0
        faulty = False
        rig.feed(pump, numbers(1, 1), headers=not_before(now_ms() + DAY_MS + 60_000))
        rig.feed(pump, numbers(50, 2))
        await rig.until(lambda: len(rig.seen) == 50)

        assert rig.copied.values("delayed") == [b"1"]
        assert pump.finish_by_operator(0, DeliveryDecision(Action.ACK, None, 0.0, "an operator skips it"))
        await rig.idle()


async def test_with_an_order_the_bytes_of_waiting_messages_are_bounded_and_the_trouble_is_reported() -> None:
    async with dispatch_rig(lambda _: None, ordering="key") as rig:
        pump = rig.pump()
        headers = not_before(now_ms() + HOUR_MS)
        for _ in range(15):
            rig.feed(pump, [(b"k%d" % (at % 3), bytes(500_000)) for at in range(10)], headers=headers)
        rig.feed(pump, numbers(10))
        await rig.until(lambda: "fills memory" in pump.troubles.words)
        await asyncio.sleep(0.1)
        assert pump._intake.held_bytes < 40_000_000
        assert not rig.seen

        for number in range(150):
            await rig.until(
                lambda at=number: pump.finish_by_operator(at, DeliveryDecision(Action.ACK, None, 0, ""))  # type: ignore[misc]
            )
        await rig.idle()
        assert len(rig.seen) == 10
        assert (pump.troubles.words, pump._intake.held_bytes) == ("", 0)


async def test_waiting_messages_of_all_partitions_share_a_bound_and_no_partition_stops_another() -> None:
    rig = DispatchRig(lambda _: None, budget=4 * MIB)
    await rig.start_receiver()
    rig.run(ordering="key")
    pumps, other = [rig.pump(partition) for partition in range(3)], rig.pump(3)
    headers = not_before(now_ms() + HOUR_MS)
    for pump in pumps:
        for _ in range(15):
            rig.feed(pump, [(b"k", bytes(10_000))] * 10, headers=headers)
    await rig.until(lambda: all(pump._intake.is_held_up for pump in pumps))
    assert rig.budget.held_bytes == sum(pump._intake.held_bytes for pump in pumps)
    assert rig.budget.held_bytes < 4 * MIB  # half of it, and what is decoded at once
    assert sum(pump.tracker.end for pump in pumps) < 450
    rig.feed(other, numbers(1_000, keys=3))
    await rig.until(lambda: other.delivered == 1_000)

    for number in range(150):
        for pump in pumps[:2]:
            await rig.until(
                lambda pump=pump, at=number: pump.finish_by_operator(  # type: ignore[misc]
                    at, DeliveryDecision(Action.ACK, None, 0, "")
                )
            )
    await rig.until(lambda: pumps[2].tracker.end == 150)
    await rig.close()
    assert (rig.budget.held_bytes, rig.budget.used_bytes) == (0, 0)


async def test_the_main_pump_has_the_defined_capacity_however_wide_the_backlogs_window_is() -> None:
    async with dispatch_rig(lambda _: None, tracker={"capacity": 100}) as rig:
        rig.copied.most_bytes = 1
        pump = rig.pump()
        rig.feed(pump, [(None, b"large")], headers=not_before(now_ms() + HOUR_MS))
        rig.feed(pump, numbers(400, 1))
        await rig.until(lambda: len(rig.seen) == 400)

        assert pump.tracker.limit > 100
        assert rig.split(pump, 401).tracker.limit == 100


async def test_a_changed_capacity_ends_the_widening_of_the_window() -> None:
    async with dispatch_rig(lambda _: None, tracker={"capacity": 100}) as rig:
        rig.copied.most_bytes = 1
        pump = rig.pump()
        rig.feed(pump, [(None, b"large")], headers=not_before(now_ms() + HOUR_MS))
        rig.feed(pump, numbers(400, 1))
        await rig.until(lambda: len(rig.seen) == 400)
        assert pump.tracker.limit > 100

        rig.runtime.change(definition(rig.main.address, tracker={"capacity": 600}), None)
        pump.apply_settings()
        assert pump.tracker.limit == 600
        rig.feed(pump, numbers(400, 401))
        await rig.until(lambda: len(rig.seen) == 800)


# -- what the topic keeps ------------------------------------------------------------------------------


async def test_a_message_waits_in_its_topic_for_at_most_half_of_its_retention() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(1), headers=not_before(now_ms() + 40 * 60_000))
        rig.feed(pump, numbers(1, 1), headers=not_before(now_ms() + 20 * 60_000))
        old_ms = now_ms() - 20 * 60_000
        rig.feed(pump, numbers(1, 2), headers=not_before(now_ms() + 20 * 60_000), timestamp_ms=old_ms)
        assert len(pump._queue.delayed) == 3
        rig.keeps(pump, HOUR_MS)  # as is found a moment later
        await rig.until(lambda: len(rig.copied.records) == 2)
        assert sorted(value or b"" for value in rig.copied.values("delayed")) == [b"0", b"2"]

        rig.feed(pump, numbers(1, 3), headers=not_before(now_ms() + 31 * 60_000))
        await rig.until(lambda: b"3" in rig.copied.values("delayed"))
        assert pump.status().postponed == 1


async def test_a_message_that_cannot_be_copied_away_and_may_be_lost_is_reported() -> None:
    async with dispatch_rig(lambda _: None, ordering="key") as rig:
        pump = rig.pump()
        rig.keeps(pump, HOUR_MS)
        rig.feed(pump, numbers(1), headers=not_before(now_ms() + 2 * HOUR_MS))
        await rig.until(lambda: "raise the topic's retention.ms" in pump.status().trouble)
        rig.keeps(pump, 3 * HOUR_MS)
        assert pump.status().trouble == ""

    async with dispatch_rig(lambda _: None, delay="2h") as rig:
        pump = rig.pump()
        rig.keeps(pump, HOUR_MS)
        rig.feed(pump, numbers(1))
        assert "raise its retention.ms above the delay" in pump.status().trouble
