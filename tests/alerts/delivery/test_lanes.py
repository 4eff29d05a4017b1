"""Deliveries: a channel that is down holds up no other; the newest is told, once it can be, and once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from app.alerts.delivery import lanes as module
from app.alerts.delivery.lanes import NoticeDeliveries
from app.alerts.delivery.sender import NoticeSender
from app.alerts.rules import NoticeOutcome
from app.kernel.backoff import Backoff
from tests.alerts.delivery.receivers import channel, hooks, notice, until

HASTE = Backoff(base_s=0.01, cap_s=0.02)


class Stand:
    """Deliveries, and what they tell people."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.deliveries = NoticeDeliveries(NoticeSender({}), self._tell, HASTE)
        self.outcomes: list[NoticeOutcome] = []

    def _tell(self, kind: str, subject: str, _: str, __: str) -> None:
        self.told.append((kind, subject))

    def taken(self) -> list[tuple[str, int]]:
        """Alerts and numbers that were taken so far."""
        self.outcomes += self.deliveries.take_outcomes()
        return [(one.id, one.notice) for one in self.outcomes if not one.why]


@asynccontextmanager
async def standing() -> AsyncIterator[Stand]:
    stand = Stand()
    try:
        yield stand
    finally:
        await stand.deliveries.stop()


async def test_a_channel_that_is_down_delays_no_other_and_gets_the_newest_notice_when_it_is_back() -> None:
    async with hooks() as good, hooks() as bad, standing() as stand:
        bad.down = True
        to_good, to_bad = channel("webhook", url=good.url), channel("webhook", url=bad.url)
        for number in (1, 2):
            for to in (to_good, to_bad):
                stand.deliveries.offer(to, notice(number))
            await until(lambda number=number: ("f00-1", number) in stand.taken())
        await until(lambda: stand.told)
        await until(lambda: bad.asked > 5)
        assert stand.told == [("alert-channel-down", "orders-lost/webhook")], "people are told once"
        stand.taken()
        failed = [one for one in stand.outcomes if one.why]
        assert {(one.channel, one.why) for one in failed} == {(to_bad.key, "answered 503: not now")}
        bad.down = False
        await until(lambda: bad.taken)
        await until(lambda: len(stand.taken()) == 3)
        assert [body["notice"] for body in bad.bodies] == [2]
        assert [body["notice"] for body in good.bodies] == [1, 2]
        assert stand.deliveries.lanes[to_bad.key].why == ""
        assert stand.deliveries.counts["orders-lost", to_bad.key, "failed"] > 5


async def test_a_receiver_that_hangs_holds_up_no_other() -> None:
    async with hooks() as good, hooks() as bad, standing() as stand:
        bad.hangs = True
        stand.deliveries.offer(channel("webhook", url=bad.url), notice())
        await until(lambda: bad.asked)
        stand.deliveries.offer(channel("webhook", url=good.url), notice())
        await until(lambda: good.taken)


async def test_a_notice_that_is_refused_holds_up_no_other_of_its_channel() -> None:
    async with hooks() as receiver, standing() as stand:
        to = channel("webhook", url=receiver.url)
        receiver.answers = [400]
        stand.deliveries.offer(to, notice(alert="a"))
        stand.deliveries.offer(to, notice(alert="b"))
        await until(lambda: len(stand.taken()) == 2)
        assert [body["alert"] for body in receiver.bodies] == ["b", "a"]


@pytest.mark.parametrize("status", [200, 400, 403, 404, 407, 413, 415, 422, 502])
async def test_no_answer_of_a_proxy_gives_a_notice_up(status: int) -> None:
    async with hooks() as receiver, standing() as stand:
        receiver.page = "<html>Not now</html>" if status == 200 else ""
        receiver.answers = [status] * 5
        stand.deliveries.offer(channel("webhook", url=receiver.url), notice())
        await until(lambda: receiver.asked >= 5)
        assert not receiver.taken
        receiver.page = ""
        await until(lambda: receiver.taken)


async def test_an_accepted_notice_is_sent_again_only_with_again() -> None:
    async with hooks() as receiver, standing() as stand:
        to = channel("webhook", url=receiver.url)
        stand.deliveries.offer(to, notice())
        await until(lambda: receiver.taken)
        await until(stand.taken)
        stand.deliveries.offer(to, notice())
        stand.deliveries.offer(to, notice(alert="other"))
        await until(lambda: len(stand.taken()) == 2)
        assert [body["alert"] for body in receiver.bodies] == ["f00-1", "other"]
        stand.deliveries.offer(to, notice(), again=True)
        await until(lambda: len(receiver.taken) == 3)


async def test_waiting_notices_are_bounded_and_outdated_ones_do_not_wait() -> None:
    async with hooks() as receiver, standing() as stand:
        receiver.hangs = True
        to = channel("webhook", url=receiver.url)
        for number in range(module.MOST_WAITING + 10):
            stand.deliveries.offer(to, notice(alert=f"a{number}"))
        await until(lambda: receiver.asked)
        lane = stand.deliveries.lanes[to.key]
        assert len(lane.waiting) <= module.MOST_WAITING
        stand.deliveries.keep({to.key}, {"a5"})
        assert list(lane.waiting) == ["a5"]
        stand.deliveries.rest()
        assert not lane.waiting
        stand.deliveries.keep(set(), {"a5"})
        assert not stand.deliveries.lanes
        await asyncio.sleep(0)
        assert lane.task is not None
        await until(lane.task.done)
