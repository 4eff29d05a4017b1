"""Skip, stash and a pause on a pump with a real receiver."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from app.controllog.events import Assignment, OperatorAct
from app.dispatch.jobs import operator_acts as module
from app.dispatch.jobs.operator_acts import COPYING, ENDING, FINISHED, MOVED, NOT_READ, DispatchActs
from app.kernel.lease import Lease
from app.worker.jobs.operator_acts import EndedOffsets, NotHere, OperationRefused, count
from app.worker.runtime.operators import OperatorActions
from switchyard.receiver import Message
from tests.dispatch.pump.rig import DispatchRig, dispatch_rig, numbers
from tests.web.runtime_fake import FakeControlLog

ME = "w1"


class Hangs:
    """A handler that does not return for some messages until `go` is set."""

    def __init__(self, *values: int) -> None:
        self.values = {str(value).encode() for value in values}
        self.go = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        if message.value in self.values:
            await self.go.wait()


class Office:
    """An operator of the rig's first pump."""

    def __init__(self, rig: DispatchRig) -> None:
        self.rig, self.log = rig, FakeControlLog()
        self.pump = rig.pumps[0]
        self.job = str(self.pump.job)
        pumps = {self.job: self.pump}
        self.jobs: Any = SimpleNamespace(
            worker=ME, pumps=pumps, flowing=pumps, draining=False, lease=rig.lease
        )
        log: Any = self.log
        no_clusters: Any = None
        self.operators = OperatorActions(self.jobs, log, no_clusters)
        self.acts = DispatchActs(self.operators, pumps)
        self.assign(ME)

    def assign(self, worker: str, epoch: int = 1) -> None:
        self.log.view.apply(Assignment(at_ms=1, job=self.job, worker=worker, epoch=epoch, term=0, reason=""))

    @property
    def recorded(self) -> list[Any]:
        return [event for event in self.log.appended if isinstance(event, OperatorAct)]


async def stuck_at(rig: DispatchRig, offset: int, total: int = 30) -> Office:
    """Delivers all messages but the one at `offset`, whose call does not return."""
    pump = rig.pump()
    rig.feed(pump, numbers(total))
    await rig.until(lambda: pump.tracker.unfinished == 1 and offset in pump.calls)
    return Office(rig)


async def test_a_skipped_message_is_finished_and_everything_behind_it_is_committed() -> None:
    async with dispatch_rig(Hangs(7)) as rig:
        office = await stuck_at(rig, 7)
        ended = await office.acts.skip(office.job, [(7, 8)], "ann", "bug 17")
        assert ended == EndedOffsets(((7, 8),), (), {})
        assert office.pump.tracker.base == 30
        assert rig.copied.records == []
        (act,) = office.recorded
        assert (act.subject, act.action, act.actor) == (office.job, "skip", "ann")
        assert act.detail == "7: 1 ended (bug 17)"


async def test_a_stashed_message_is_in_the_dlq_with_actor_and_reason() -> None:
    async with dispatch_rig(Hangs(7)) as rig:
        office = await stuck_at(rig, 7)
        ended = await office.acts.stash(office.job, [(7, 8)], "ann", "bug 17")
        assert (ended.ended, office.pump.tracker.base) == (((7, 8),), 30)
        ((topic, _, value, headers),) = rig.copied.records
        assert (topic.endswith("__dlq"), value) == (True, b"7")
        assert headers["switchyard-reason"] == b"stashed by ann: bug 17"


async def test_offsets_that_cannot_end_are_named_with_the_reason_and_stay() -> None:
    async with dispatch_rig(Hangs(7), ordering="partition") as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(30))
        await rig.until(lambda: 7 in pump.calls)
        office = Office(rig)
        ranges = [(6, 9), (1_000, 1_002)]
        look = office.acts.foresee(office.job, ranges)
        assert (look.ended, look.pending) == (((7, 9),), ())
        assert look.refused == {FINISHED: ((6, 7),), NOT_READ: ((1_000, 1_002),)}
        assert (pump.tracker.base, office.log.appended) == (7, []), "a dry run changes nothing"
        assert await office.acts.skip(office.job, ranges, "ann") == look
        await rig.idle()
        assert b"8" not in rig.values()


@pytest.mark.parametrize("verb", ["skip", "stash"])
@pytest.mark.parametrize("contract", ["unary", "stream"])
@pytest.mark.parametrize(("ordering", "keys"), [("key", 2), ("partition", 0)])
async def test_a_message_waiting_for_its_turn_ends_at_once_and_the_next_ones_stay_in_order(
    ordering: str, keys: int, contract: str, verb: str
) -> None:
    stuck = Hangs(0)
    async with dispatch_rig(stuck, ordering=ordering, target={"contract": contract}) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(30, keys=keys))
        waiting = 30 // keys if keys else 30  # behind the first message; messages of other keys are finished
        await rig.until(lambda: pump.tracker.unfinished == waiting and b"0" in rig.values())
        assert pump.in_flight == 1
        office = Office(rig)
        ended = await getattr(office.acts, verb)(office.job, [(4, 5), (8, 11), (20, 21)], "ann")
        gone = {4, 8, 10, 20} | ({9} if ordering == "partition" else set())
        assert {offset for span in ended.ended for offset in range(*span)} == gone
        assert pump.tracker.base == 0, "the message before them is still in flight"
        assert rig.copied.values("__dlq") == [str(n).encode() for n in sorted(gone) if verb == "stash"]
        stuck.go.set()
        await rig.idle()
        even = [int(message.value) for message in rig.seen if not keys or message.key == b"0"]
        assert even == [n for n in range(0, 30, keys or 1) if n not in gone]


@pytest.mark.parametrize("ordering", ["none", "key"])
async def test_a_message_waiting_for_its_time_ends_at_once_and_its_key_continues(
    ordering: str,
) -> None:
    async with dispatch_rig(lambda _: None, ordering=ordering) as rig:
        pump = rig.pump()
        in_an_hour = str(int(time.time() + 3600) * 1000).encode()
        rig.feed(pump, numbers(2, keys=1), headers=[("not-before", in_an_hour)])
        rig.feed(pump, numbers(8, 2, keys=1))
        await rig.until(lambda: not pump._intake.ready)
        office = Office(rig)
        assert (await office.acts.skip(office.job, [(0, 1)], "ann")).ended == ((0, 1),)
        assert (await office.acts.stash(office.job, [(1, 2)], "ann")).ended == ((1, 2),)
        assert rig.copied.values("__dlq") == [b"1"]
        await rig.idle()
        assert sorted(int(message.value) for message in rig.seen) == list(range(2, 10))


@pytest.mark.parametrize("ordering", ["none", "key"])
async def test_a_message_waiting_for_the_workloads_delay_ends_at_once(ordering: str) -> None:
    async with dispatch_rig(lambda _: None, ordering=ordering, delay="1h") as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(9, keys=3))
        office = Office(rig)
        assert (await office.acts.skip(office.job, [(0, 9)], "ann")).ended == ((0, 9),)
        assert (pump.tracker.base, rig.seen) == (9, [])


async def test_a_second_operator_learns_that_a_message_is_being_ended() -> None:
    async with dispatch_rig(Hangs(*range(9)), target={"contract": "stream"}) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(9))
        await rig.until(lambda: len(rig.seen) == 9)
        office = Office(rig)
        acts = [office.acts.skip(office.job, [(2, 3)], name) for name in ("ann", "bob")]
        first, second = await asyncio.gather(*acts)
        assert (first.ended, second.refused) == (((2, 3),), {ENDING: ((2, 3),)})


async def test_a_stash_that_the_dlq_refuses_counts_as_in_flight(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "SETTLE_TIMEOUT_S", 0.3)
    async with dispatch_rig(Hangs(7)) as rig:
        office = await stuck_at(rig, 7)
        rig.copied.refuse = True
        ended = await office.acts.stash(office.job, [(7, 8)], "ann")
        assert (ended.ended, ended.pending) == ((), ((7, 8),))
        assert (await office.acts.skip(office.job, [(7, 8)], "ann")).refused == {COPYING: ((7, 8),)}
        assert office.pump.tracker.base == 7
        rig.copied.refuse = False
        await rig.idle()
        assert rig.copied.values("__dlq") == [b"7"]


async def test_only_the_owner_ends_offsets_under_its_epoch_and_lease() -> None:
    async with dispatch_rig(Hangs(7)) as rig:
        office = await stuck_at(rig, 7)
        acts = [office.acts.skip, office.acts.stash]
        office.assign("w2", 2)
        for act in acts:
            with pytest.raises(NotHere, match="belongs to w2"):
                await act(office.job, [(7, 8)], "ann")
        office.assign(ME, 3)  # its pump belongs to a former epoch
        for act in acts:
            with pytest.raises(NotHere, match="starting or stopping"):
                await act(office.job, [(7, 8)], "ann")
        office.pump.epoch = 3
        office.jobs.lease = Lease(1.0)
        for act in acts:
            with pytest.raises(NotHere, match="lease"):
                await act(office.job, [(7, 8)], "ann")
        assert (office.pump.tracker.base, office.recorded) == (7, [])


async def test_an_owner_that_loses_the_job_names_the_offsets_it_did_not_end(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "SETTLE_TIMEOUT_S", 0.2)
    async with dispatch_rig(Hangs(*range(100))) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(100))
        await rig.until(lambda: pump.tracker.unfinished == 100)
        office = Office(rig)
        conclude = pump.finish_by_operator

        def then_moves(offset: int, decision: Any) -> bool:
            if offset == 20:
                office.assign("w2", 2)
            return conclude(offset, decision)

        monkeypatch.setattr(pump, "finish_by_operator", then_moves)
        ended = await office.acts.skip(office.job, [(0, 100)], "ann")
        assert count(ended.ended) + count(ended.pending) == 2 * module.OFFSETS_PER_TURN
        assert ended.refused == {MOVED: ((32, 100),)}
        assert len(office.recorded) == 1


async def test_a_message_of_the_backlog_ends_during_a_catch_up() -> None:
    async with dispatch_rig(Hangs(7)) as rig:
        office = await stuck_at(rig, 7)
        main = office.pump.split(30)
        office.jobs.pumps[office.job] = main
        ranges = [(6, 8), (30, 31)]
        ended = await office.acts.skip(office.job, ranges, "ann")
        assert ended == EndedOffsets(((7, 8),), (), {FINISHED: ((6, 7),), NOT_READ: ((30, 31),)})
        assert main.base == 30
        main.close()


async def test_without_a_dlq_nothing_is_stashed() -> None:
    async with dispatch_rig(Hangs(7), dlq={"enabled": False}) as rig:
        office = await stuck_at(rig, 7)
        with pytest.raises(OperationRefused, match="no DLQ"):
            await office.acts.stash(office.job, [(7, 8)], "ann")
        assert 7 in office.pump.calls


async def test_many_offsets_do_not_hold_the_loop(monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "SETTLE_TIMEOUT_S", 10.0)
    async with dispatch_rig(Hangs(*range(2_000))) as rig:
        pump = rig.pump()
        rig.feed(pump, numbers(2_000))
        office = Office(rig)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        task = asyncio.create_task(others())
        ended = await office.acts.skip(office.job, [(0, 2_000)], "ann")
        task.cancel()
        answered_offsets = count(ended.ended) + count(ended.pending) + sum(map(count, ended.refused.values()))
        assert (answered_offsets, set(ended.refused) <= {NOT_READ}) == (2_000, True)
        assert turns >= 2_000 // module.OFFSETS_PER_TURN


async def test_fetched_messages_wait_while_paused_and_are_delivered_once() -> None:
    async with dispatch_rig(lambda _: None) as rig:
        pump = rig.pump()
        pump.pause(True)
        rig.feed(pump, numbers(500))
        began_s = time.monotonic()
        await rig.until(lambda: time.monotonic() > began_s + 0.3)
        assert (len(rig.seen), pump.tracker.base, pump.state) == (0, 0, "paused")
        pump.pause(False)
        await rig.idle()
        assert set(rig.values().values()) == {1}
