"""Deliveries: a channel that is down delays no other; once it is back it gets the newest notice, once."""

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


class DeliveryRecorder:
    """Deliveries with their outcomes and the incidents that they report."""

    def __init__(self) -> None:
        self.incidents: list[tuple[str, str]] = []
        self.deliveries = NoticeDeliveries(NoticeSender({}), self._report, HASTE)
        self.outcomes: list[NoticeOutcome] = []

    def _report(self, kind: str, subject: str, *_: object) -> None:
        self.incidents.append((kind, subject))

    def taken(self) -> list[tuple[str, int]]:
        """Alert and number of each notice that a channel has accepted."""
        self.outcomes += self.deliveries.take_outcomes()
        return [(one.id, one.notice) for one in self.outcomes if not one.why]


@asynccontextmanager
async def recording() -> AsyncIterator[DeliveryRecorder]:
    recorder = DeliveryRecorder()
    try:
        yield recorder
    finally:
        await recorder.deliveries.stop()


async def test_a_channel_that_is_down_delays_no_other_and_gets_the_newest_notice_when_it_is_back() -> None:
    async with hooks() as good, hooks() as bad, recording() as recorder:
        bad.down = True
        to_good, to_bad = channel("webhook", url=good.url), channel("webhook", url=bad.url)
        for number in (1, 2):
            for to in (to_good, to_bad):
                recorder.deliveries.offer(to, notice(number))
            await until(lambda number=number: ("f00-1", number) in recorder.taken())
        await until(lambda: recorder.incidents)
        await until(lambda: bad.request_count > 5)
        assert recorder.incidents == [("alert-channel-down", "orders-lost/webhook")], (
            "the outage was reported more than once"
        )
        recorder.taken()
        failed = [one for one in recorder.outcomes if one.why]
        assert {(one.channel, one.why) for one in failed} == {(to_bad.key, "answered 503: not now")}
        bad.down = False
        await until(lambda: bad.taken)
        await until(lambda: len(recorder.taken()) == 3)
        assert [body["notice"] for body in bad.bodies] == [2]
        assert [body["notice"] for body in good.bodies] == [1, 2]
        assert recorder.deliveries.lanes[to_bad.key].why == ""
        assert recorder.deliveries.counts["orders-lost", to_bad.key, "failed"] > 5


async def test_a_receiver_that_hangs_holds_up_no_other() -> None:
    async with hooks() as good, hooks() as bad, recording() as recorder:
        bad.hangs = True
        recorder.deliveries.offer(channel("webhook", url=bad.url), notice())
        await until(lambda: bad.request_count)
        recorder.deliveries.offer(channel("webhook", url=good.url), notice())
        await until(lambda: good.taken)


async def test_a_notice_that_is_refused_holds_up_no_other_of_its_channel() -> None:
    async with hooks() as receiver, recording() as recorder:
        to = channel("webhook", url=receiver.url)
        receiver.answers = [400]
        recorder.deliveries.offer(to, notice(alert="a"))
        recorder.deliveries.offer(to, notice(alert="b"))
        await until(lambda: len(recorder.taken()) == 2)
        assert [body["alert"] for body in receiver.bodies] == ["b", "a"]


@pytest.mark.parametrize("status", [200, 400, 403, 404, 407, 413, 415, 422, 502])
async def test_no_answer_of_a_proxy_makes_the_sender_give_up_a_notice(status: int) -> None:
    async with hooks() as receiver, recording() as recorder:
        receiver.page = "<html>Not now</html>" if status == 200 else ""
        receiver.answers = [status] * 5
        recorder.deliveries.offer(channel("webhook", url=receiver.url), notice())
        await until(lambda: receiver.request_count >= 5)
        assert not receiver.taken
        receiver.page = ""
        await until(lambda: receiver.taken)


async def test_an_accepted_notice_is_sent_again_only_if_forced() -> None:
    async with hooks() as receiver, recording() as recorder:
        to = channel("webhook", url=receiver.url)
        recorder.deliveries.offer(to, notice())
        await until(lambda: receiver.taken)
        await until(recorder.taken)
        recorder.deliveries.offer(to, notice())
        recorder.deliveries.offer(to, notice(alert="other"))
        await until(lambda: len(recorder.taken()) == 2)
        assert [body["alert"] for body in receiver.bodies] == ["f00-1", "other"]
        recorder.deliveries.offer(to, notice(), again=True)
        await until(lambda: len(receiver.taken) == 3)


async def test_waiting_notices_are_bounded_and_outdated_ones_do_not_wait() -> None:
    async with hooks() as receiver, recording() as recorder:
        receiver.hangs = True
        to = channel("webhook", url=receiver.url)
        for number in range(module.MOST_WAITING + 10):
            recorder.deliveries.offer(to, notice(alert=f"a{number}"))
        await until(lambda: receiver.request_count)
        lane = recorder.deliveries.lanes[to.key]
        assert len(lane.waiting) <= module.MOST_WAITING
        recorder.deliveries.keep({to.key}, {"a5"})
        assert list(lane.waiting) == ["a5"]
        recorder.deliveries.rest()
        assert not lane.waiting
        recorder.deliveries.keep(set(), {"a5"})
        assert not recorder.deliveries.lanes
        await asyncio.sleep(0)
        assert lane.task is not None
        await until(lane.task.done)
