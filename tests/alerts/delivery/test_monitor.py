"""Alerts on the leader, with real books and real receivers: what fires is told once it stands in the control
log, and is told by whoever leads next when the leader is killed at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.errors import KafkaError

from app.alerts.delivery import monitor as module
from app.alerts.delivery.monitor import AlertMonitor
from app.audit.jobs.books import AuditBook
from app.audit.jobs.region_query import RegionQuery
from app.audit.jobs.report_sender import audit_partition
from app.controllog.alert_state import AlertState
from app.controllog.events import AlertDeleted, AlertPut, AuditPut, Claim
from tests.alerts.delivery.receivers import WebhookServer, definition, hooks, until
from tests.audit.query.test_view import AWAY, HOME, NOW_MS, audit_plan, counted_at_both
from tests.web.runtime_fake import FakeRuntime


class Stand:
    """A region with books by hand; leaders come and go, and know nothing but the control log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = NOW_MS
        monkeypatch.setattr(module, "now_ms", lambda: self.now_ms)
        monkeypatch.setattr(module, "RESEND_INTERVAL_S", 0.0)
        monkeypatch.setattr(module, "BUSY_SHARE", 0)
        self.fed = FakeRuntime()
        self.log = self.fed.control
        self.told: list[tuple[str, str]] = []
        self.said: list[str] = []
        self.leaders: list[AlertMonitor] = []
        plan = audit_plan(clusters=["east-regional", "east"])
        self.log.view.apply(
            AuditPut(at_ms=0, key=plan.key, definition=plan.to_wire(), etag=plan.etag(), actor="test")
        )
        self.leader = self.next()

    def next(self) -> AlertMonitor:
        """Another worker leads; the former one was killed, and does nothing any more."""
        term = self.log.view.term + 1
        self.log.view.apply(Claim(at_ms=0, term=term, worker=f"w{term}"))
        log: Any = self.log
        auditor = RegionQuery("w", self.fed.audit_books, self.fed.catalog.audits, dict)

        def tell(kind: str, subject: str, message: str, remedy: str) -> None:
            self.told.append((kind, subject))
            self.said.append(f"{message} -> {remedy}")

        self.leader = AlertMonitor(log, auditor, lambda: True, tell, "east", {})
        self.leader.look_s = 0.0
        self.leaders.append(self.leader)
        return self.leader

    def books(self, *, lost: int = 0, closed: bool = True) -> None:
        """What was counted: `lost` of 20 records have not arrived."""
        region = counted_at_both(lost=lost)
        for tier in (HOME, AWAY) if closed else ():
            region.close(tier)
        self.fed.audit_books.books[audit_partition("orders")] = AuditBook(region.position, region.collector)

    def deploy(self, *channels: dict[str, Any], **spec: Any) -> None:
        made = definition(*channels, **spec)
        wire = made.to_wire()
        there = self.log.view.alerts.get(made.key)
        put = AlertPut(
            at_ms=0, key=made.key, definition={**wire, "spec": wire["spec"] | spec}, etag=made.etag(),
            actor="test", deployment="" if there is None else there.deployment,
        )  # fmt: skip
        assert self.log.view.apply(put)

    @property
    def states(self) -> list[AlertState]:
        return list(self.log.view.alert_states.states.values())

    async def told_of(self, receiver: WebhookServer, count: int) -> list[tuple[str, str]]:
        """Ids and states of what came there, once there is as much."""
        await until(lambda: len(receiver.taken) >= count)
        return [(body["id"], body["status"]) for body in receiver.bodies]

    async def written(self, condition: Callable[[AlertState], bool]) -> None:
        """Ticks until an alert's state says so."""

        async def look() -> None:
            while not any(map(condition, self.states)):
                await self.leader.tick()
                await asyncio.sleep(0.01)

        await asyncio.wait_for(look(), 30)

    async def end(self) -> None:
        for leader in self.leaders:
            await leader.deliveries.stop()


@pytest.fixture
async def stand(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Stand(monkeypatch)
    yield found
    await found.end()


async def test_loss_is_notified_and_so_is_its_end(stand: Stand) -> None:
    async with hooks() as receiver:
        stand.deploy({"webhook": {"url": receiver.url}})
        stand.books(lost=2, closed=False)
        await stand.leader.tick()
        assert not stand.states, "what is provisional never fires"
        stand.books(lost=2)
        await stand.leader.tick()
        ((first, status),) = await stand.told_of(receiver, 1)
        assert (status, receiver.bodies[0]["windows"][0]["missing"]) == ("firing", 2)
        await stand.written(lambda state: bool(state.told))
        stand.books(lost=0)
        await stand.leader.tick()
        ids = await stand.told_of(receiver, 2)
        assert [status for _, status in ids] == ["firing", "resolved"]
        assert ids[1][0] == f"{first.rpartition('-')[0]}-2"
        await stand.written(lambda state: state.state == "resolved" and bool(state.told))
        for _ in range(5):
            await stand.leader.tick()
        assert len(receiver.taken) == 2
        assert len([e for e in stand.log.appended if isinstance(e, AlertState)]) == 4, "no more is written"


async def test_a_leader_killed_before_it_could_notify_is_followed_by_one_that_notifies(stand: Stand) -> None:
    async with hooks() as receiver:
        receiver.down = True
        stand.deploy({"webhook": {"url": receiver.url}})
        stand.books(lost=2)
        await stand.leader.tick()  # it is in the log
        await stand.leader.deliveries.stop()  # kill -9 between transition and delivery
        receiver.down = False
        stand.next()
        stand.now_ms += 1_000
        await stand.leader.tick()
        ((told, status),) = await stand.told_of(receiver, 1)
        (state,) = stand.states
        assert (status, told, state.fired_ms) == ("firing", f"{state.id}-1", NOW_MS), "it did not fire again"


async def test_a_leader_killed_before_it_recorded_a_notice_is_followed_by_one_with_the_same_id(
    stand: Stand,
) -> None:
    async with hooks() as receiver:
        stand.deploy({"webhook": {"url": receiver.url}})
        stand.books(lost=2)
        await stand.leader.tick()
        await stand.told_of(receiver, 1)  # taken, and killed before the next tick
        stand.next()
        await stand.leader.tick()
        ids = await stand.told_of(receiver, 2)
        assert ids[0] == ids[1], "the receiver can tell that it is the same"
        await stand.written(lambda state: bool(state.told))
        stand.next()
        for _ in range(3):
            await stand.leader.tick()
        assert len(receiver.taken) == 2, "what was written down is not told again"


async def test_a_deposed_leader_that_still_runs_changes_and_notifies_nothing(stand: Stand) -> None:
    async with hooks() as receiver:
        stand.deploy({"webhook": {"url": receiver.url}})
        stand.books(lost=2)
        term = stand.log.view.term
        meanwhile = Claim(at_ms=0, term=term + 1, worker="other")
        stand.log.meanwhile = [meanwhile]  # just before what it writes
        await stand.leader.tick()
        assert not stand.states
        assert receiver.asked == 0


async def test_a_channel_that_is_down_is_reported_and_delays_no_other(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hooks() as good, hooks() as bad:
        bad.down = True
        stand.deploy({"webhook": {"url": bad.url}}, {"webhook": {"url": good.url}})
        stand.books(lost=2)
        await stand.leader.tick()
        await stand.told_of(good, 1)
        assert not bad.taken
        await stand.written(lambda state: any(told.why for told in state.told.values()))
        assert stand.told == [("alert-channel-down", "orders-lost/webhook")]
        (state,) = stand.states
        assert sorted(told.why for told in state.told.values()) == ["", "answered 503: not now"]
        bad.down = False
        await stand.written(lambda state: all(told.notice == 1 for told in state.told.values()))


async def test_alertmanager_gets_repeated_notices_while_an_alert_fires(stand: Stand) -> None:
    async with hooks() as receiver:
        stand.deploy({"alertmanager": {"url": receiver.url}})
        stand.books(lost=2)

        async def ticks(count: int) -> None:
            while len(receiver.taken) < count:
                await stand.leader.tick()
                await asyncio.sleep(0.01)

        await asyncio.wait_for(ticks(3), 30)
        assert len({str(alert["labels"]) for (alert,) in receiver.bodies}) == 1
        stand.next()
        await asyncio.wait_for(ticks(5), 30)
        stand.books(lost=0)
        await stand.leader.tick()
        await until(lambda: receiver.bodies[-1][0]["endsAt"] < "1971")


async def test_an_unknown_state_decides_nothing_and_is_reported_after_a_while(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNKNOWN_REPORTED_S", 0.0)
    stand.deploy()
    stand.books(lost=2)
    await stand.leader.tick()
    assert [state.state for state in stand.states] == ["firing"]

    async def missing_partitions(_: object) -> list[int]:
        return [3]

    stand.books(lost=0)
    stand.fed.audit_books.missing_partitions = missing_partitions  # type: ignore[method-assign]
    for _ in range(3):
        await stand.leader.tick()
    assert [state.state for state in stand.states] == ["firing"]
    assert stand.told == [("alerts-blind", "east")]
    assert "being read" in stand.leader.unknown


async def test_a_state_that_could_not_be_written_is_written_and_notified_later(stand: Stand) -> None:
    async with hooks() as receiver:
        stand.deploy({"webhook": {"url": receiver.url}})
        stand.books(lost=2)
        stand.log.failure = KafkaError("away")
        with pytest.raises(KafkaError):
            await stand.leader.tick()
        assert receiver.asked == 0
        stand.log.failure = None
        await stand.leader.tick()
        await stand.told_of(receiver, 1)
        stand.log.failure = KafkaError("away")
        with pytest.raises(KafkaError):
            await stand.written(lambda state: bool(state.told))
        stand.log.failure = None
        await stand.written(lambda state: bool(state.told))
        assert len(receiver.taken) == 1, "what was taken is not told again meanwhile"


async def test_a_refused_record_is_overwritten_with_the_current_state(stand: Stand) -> None:
    stand.deploy()
    stand.books(lost=2)
    await stand.leader.tick()
    (state,) = stand.states
    stand.log.refused_alerts = {state.id, "of-long-ago"}
    stand.next()
    await stand.leader.tick()
    last = stand.log.appended[-1]
    assert isinstance(last, AlertState)
    assert (last.id, last.term, last.state) == (state.id, stand.log.view.term, "firing")
    assert "alert-state/of-long-ago" in stand.log.view.stale


async def test_a_deleted_alert_sends_no_more_notices_and_leaves_nothing(stand: Stand) -> None:
    async with hooks() as receiver:
        stand.deploy({"webhook": {"url": receiver.url}})
        stand.books(lost=2)
        await stand.leader.tick()
        await stand.told_of(receiver, 1)
        assert stand.log.view.apply(AlertDeleted(at_ms=0, key="alert:orders-lost", actor="test"))
        await stand.leader.tick()
        assert not stand.states
        assert not stand.leader.deliveries.lanes
        before = len(stand.log.appended)
        await stand.leader.tick()
        assert len(stand.log.appended) == before


async def test_a_stored_alert_with_removed_channels_still_fires_to_the_others_and_is_an_incident(
    stand: Stand,
) -> None:
    """An earlier version put it into the control log, and nobody deploys it again after the upgrade."""
    slack = {"slack": {"url": "env:SWITCHYARD_ALERT_SLACK"}}
    mail = {"email": {"smtp": "mail.example:587", "from": "yard@example.org", "to": ["oncall@example.org"]}}
    async with hooks() as receiver:
        stand.deploy(slack, {"webhook": {"url": receiver.url}}, mail, repeat="4h")
        stand.books(lost=2)
        await stand.leader.tick()
        assert [status for _, status in await stand.told_of(receiver, 1)] == ["firing"]
        await stand.written(lambda state: bool(state.told))
        stand.books(lost=0)
        await stand.leader.tick()
        assert [status for _, status in await stand.told_of(receiver, 2)] == ["firing", "resolved"]
        tried = await stand.leader.test(stand.leader.definitions()[0])
        assert [(one["channel"], one["taken"]) for one in tried] == [
            ("slack", False), ("webhook", True), ("email", False),
        ]  # fmt: skip
    assert stand.told == [("alert-trouble", "orders-lost")]
    (said,) = stand.said
    assert said.startswith("spec.channels.0.slack, spec.channels.2.email: no longer a channel")
    assert "slack_configs or email_configs in Alertmanager's configuration" in said
    assert not [key for state in stand.states for key in state.told if not key.startswith("webhook-")]


async def test_a_test_reaches_every_channel_and_changes_nothing(stand: Stand) -> None:
    async with hooks() as good, hooks() as bad:
        bad.down = True
        made = definition({"webhook": {"url": good.url}}, {"webhook": {"url": bad.url}})
        first, second = await stand.leader.test(made)
        assert (first["taken"], second["taken"], second["why"]) == (True, False, "answered 503: not now")
        assert good.bodies[0]["test"] is True
    assert not stand.log.appended
