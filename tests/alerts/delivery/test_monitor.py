"""Alerts on the leader, with real audit books and real receivers.

A leader sends a notice once the alert stands in the control log; if it is killed, the next leader sends it.
"""

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


class AlertRegion:
    """A region with audit books set by the test. Its successive leaders share only the control log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = NOW_MS
        monkeypatch.setattr(module, "now_ms", lambda: self.now_ms)
        monkeypatch.setattr(module, "RESEND_INTERVAL_S", 0.0)
        monkeypatch.setattr(module, "BUSY_SHARE", 0)
        self.runtime = FakeRuntime()
        self.log = self.runtime.control
        self.incidents: list[tuple[str, str]] = []
        self.messages: list[str] = []
        self.leaders: list[AlertMonitor] = []
        plan = audit_plan(clusters=["east-regional", "east"])
        self.log.view.apply(
            AuditPut(at_ms=0, key=plan.key, definition=plan.to_wire(), etag=plan.etag(), actor="test")
        )
        self.leader = self.next()

    def next(self) -> AlertMonitor:
        """Another worker leads; the former leader was killed."""
        term = self.log.view.term + 1
        self.log.view.apply(Claim(at_ms=0, term=term, worker=f"w{term}"))
        log: Any = self.log
        auditor = RegionQuery("w", self.runtime.audit_books, self.runtime.catalog.audits, dict)

        def report(kind: str, subject: str, message: str, remedy: str, *_: object) -> None:
            self.incidents.append((kind, subject))
            self.messages.append(f"{message} -> {remedy}")

        self.leader = AlertMonitor(log, auditor, lambda: True, report, "east", {})
        self.leader.look_s = 0.0
        self.leaders.append(self.leader)
        return self.leader

    def books(self, *, lost: int = 0, closed: bool = True) -> None:
        """Sets the audit's counts: `lost` of 20 records have not arrived."""
        counted = counted_at_both(lost=lost)
        for tier in (HOME, AWAY) if closed else ():
            counted.close(tier)
        self.runtime.audit_books.books[audit_partition("orders")] = AuditBook(
            counted.position, counted.collector
        )

    def deploy(self, *channels: dict[str, Any], **spec: Any) -> None:
        alert = definition(*channels, **spec)
        wire = alert.to_wire()
        stored = self.log.view.alerts.get(alert.key)
        put = AlertPut(
            at_ms=0, key=alert.key, definition={**wire, "spec": wire["spec"] | spec}, etag=alert.etag(),
            actor="test", deployment="" if stored is None else stored.deployment,
        )  # fmt: skip
        assert self.log.view.apply(put)

    @property
    def states(self) -> list[AlertState]:
        return list(self.log.view.alert_states.states.values())

    async def notices_of(self, receiver: WebhookServer, count: int) -> list[tuple[str, str]]:
        """Id and state of the notices that the receiver has taken, once it has `count` of them."""
        await until(lambda: len(receiver.taken) >= count)
        return [(body["id"], body["status"]) for body in receiver.bodies]

    async def written(self, condition: Callable[[AlertState], bool]) -> None:
        """Ticks until the condition holds for the state of an alert."""

        async def look() -> None:
            while not any(map(condition, self.states)):
                await self.leader.tick()
                await asyncio.sleep(0.01)

        await asyncio.wait_for(look(), 30)

    async def end(self) -> None:
        for leader in self.leaders:
            await leader.deliveries.stop()


@pytest.fixture
async def region(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = AlertRegion(monkeypatch)
    yield found
    await found.end()


async def test_loss_is_notified_and_so_is_its_end(region: AlertRegion) -> None:
    async with hooks() as receiver:
        region.deploy({"webhook": {"url": receiver.url}})
        region.books(lost=2, closed=False)
        await region.leader.tick()
        assert not region.states, "a provisional window fired"
        region.books(lost=2)
        await region.leader.tick()
        ((first, status),) = await region.notices_of(receiver, 1)
        assert (status, receiver.bodies[0]["windows"][0]["missing"]) == ("firing", 2)
        await region.written(lambda state: bool(state.told))
        region.books(lost=0)
        await region.leader.tick()
        ids = await region.notices_of(receiver, 2)
        assert [status for _, status in ids] == ["firing", "resolved"]
        assert ids[1][0] == f"{first.rpartition('-')[0]}-2"
        await region.written(lambda state: state.state == "resolved" and bool(state.told))
        for _ in range(5):
            await region.leader.tick()
        assert len(receiver.taken) == 2
        assert len([e for e in region.log.appended if isinstance(e, AlertState)]) == 4, (
            "a settled alert was written again"
        )


async def test_a_leader_killed_before_it_could_notify_is_followed_by_one_that_notifies(
    region: AlertRegion,
) -> None:
    async with hooks() as receiver:
        receiver.down = True
        region.deploy({"webhook": {"url": receiver.url}})
        region.books(lost=2)
        await region.leader.tick()  # the log has the alert
        await region.leader.deliveries.stop()  # kill -9 between transition and delivery
        receiver.down = False
        region.next()
        region.now_ms += 1_000
        await region.leader.tick()
        ((notice_id, status),) = await region.notices_of(receiver, 1)
        (state,) = region.states
        assert (status, notice_id, state.fired_ms) == ("firing", f"{state.id}-1", NOW_MS), (
            "the alert fired again"
        )


async def test_a_leader_killed_before_it_recorded_a_notice_is_followed_by_one_with_the_same_id(
    region: AlertRegion,
) -> None:
    async with hooks() as receiver:
        region.deploy({"webhook": {"url": receiver.url}})
        region.books(lost=2)
        await region.leader.tick()
        await region.notices_of(
            receiver, 1
        )  # the notice was taken; the leader is killed before its next tick
        region.next()
        await region.leader.tick()
        ids = await region.notices_of(receiver, 2)
        assert ids[0] == ids[1], "a repeated notice has another id"
        await region.written(lambda state: bool(state.told))
        region.next()
        for _ in range(3):
            await region.leader.tick()
        assert len(receiver.taken) == 2, "a recorded notice was sent again"


async def test_a_deposed_leader_that_still_runs_changes_and_notifies_nothing(region: AlertRegion) -> None:
    async with hooks() as receiver:
        region.deploy({"webhook": {"url": receiver.url}})
        region.books(lost=2)
        term = region.log.view.term
        claim = Claim(at_ms=0, term=term + 1, worker="other")
        region.log.meanwhile = [claim]  # another leader's claim precedes its write
        await region.leader.tick()
        assert not region.states
        assert receiver.request_count == 0


async def test_a_channel_that_is_down_is_reported_and_delays_no_other(
    region: AlertRegion, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hooks() as good, hooks() as bad:
        bad.down = True
        region.deploy({"webhook": {"url": bad.url}}, {"webhook": {"url": good.url}})
        region.books(lost=2)
        await region.leader.tick()
        await region.notices_of(good, 1)
        assert not bad.taken
        await region.written(lambda state: any(last.why for last in state.told.values()))
        assert region.incidents == [("alert-channel-down", "orders-lost/webhook")]
        (state,) = region.states
        assert sorted(last.why for last in state.told.values()) == ["", "answered 503: not now"]
        bad.down = False
        await region.written(lambda state: all(last.notice == 1 for last in state.told.values()))


async def test_alertmanager_gets_repeated_notices_while_an_alert_fires(region: AlertRegion) -> None:
    async with hooks() as receiver:
        region.deploy({"alertmanager": {"url": receiver.url}})
        region.books(lost=2)

        async def ticks(count: int) -> None:
            while len(receiver.taken) < count:
                await region.leader.tick()
                await asyncio.sleep(0.01)

        await asyncio.wait_for(ticks(3), 30)
        assert len({str(alert["labels"]) for (alert,) in receiver.bodies}) == 1
        region.next()
        await asyncio.wait_for(ticks(5), 30)
        region.books(lost=0)
        await region.leader.tick()
        await until(lambda: receiver.bodies[-1][0]["endsAt"] < "1971")


async def test_an_unknown_state_decides_nothing_and_is_reported_after_a_while(
    region: AlertRegion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNKNOWN_REPORTED_S", 0.0)
    region.deploy()
    region.books(lost=2)
    await region.leader.tick()
    assert [state.state for state in region.states] == ["firing"]

    async def missing_partitions(_: object) -> list[int]:
        return [3]

    region.books(lost=0)
    region.runtime.audit_books.missing_partitions = missing_partitions  # type: ignore[method-assign]
    for _ in range(3):
        await region.leader.tick()
    assert [state.state for state in region.states] == ["firing"]
    assert region.incidents == [("alerts-blind", "east")]
    assert "being read" in region.leader.unknown


async def test_a_state_that_could_not_be_written_is_written_and_notified_later(region: AlertRegion) -> None:
    async with hooks() as receiver:
        region.deploy({"webhook": {"url": receiver.url}})
        region.books(lost=2)
        region.log.failure = KafkaError("away")
        with pytest.raises(KafkaError):
            await region.leader.tick()
        assert receiver.request_count == 0
        region.log.failure = None
        await region.leader.tick()
        await region.notices_of(receiver, 1)
        region.log.failure = KafkaError("away")
        with pytest.raises(KafkaError):
            await region.written(lambda state: bool(state.told))
        region.log.failure = None
        await region.written(lambda state: bool(state.told))
        assert len(receiver.taken) == 1, "an accepted notice was sent again"


async def test_a_refused_record_is_overwritten_with_the_current_state(region: AlertRegion) -> None:
    region.deploy()
    region.books(lost=2)
    await region.leader.tick()
    (state,) = region.states
    region.log.refused_alerts = {state.id, "of-long-ago"}
    region.next()
    await region.leader.tick()
    last = region.log.appended[-1]
    assert isinstance(last, AlertState)
    assert (last.id, last.term, last.state) == (state.id, region.log.view.term, "firing")
    assert "alert-state/of-long-ago" in region.log.view.stale


async def test_a_deleted_alert_sends_no_more_notices_and_leaves_nothing(region: AlertRegion) -> None:
    async with hooks() as receiver:
        region.deploy({"webhook": {"url": receiver.url}})
        region.books(lost=2)
        await region.leader.tick()
        await region.notices_of(receiver, 1)
        assert region.log.view.apply(AlertDeleted(at_ms=0, key="alert:orders-lost", actor="test"))
        await region.leader.tick()
        assert not region.states
        assert not region.leader.deliveries.lanes
        before = len(region.log.appended)
        await region.leader.tick()
        assert len(region.log.appended) == before


async def test_a_stored_alert_with_removed_channels_still_fires_to_the_others_and_is_an_incident(
    region: AlertRegion,
) -> None:
    """An earlier version put it into the control log, and it is not deployed again after the upgrade."""
    slack = {"slack": {"url": "env:SWITCHYARD_ALERT_SLACK"}}
    mail = {"email": {"smtp": "mail.example:587", "from": "yard@example.org", "to": ["oncall@example.org"]}}
    async with hooks() as receiver:
        region.deploy(slack, {"webhook": {"url": receiver.url}}, mail, repeat="4h")
        region.books(lost=2)
        await region.leader.tick()
        assert [status for _, status in await region.notices_of(receiver, 1)] == ["firing"]
        await region.written(lambda state: bool(state.told))
        region.books(lost=0)
        await region.leader.tick()
        assert [status for _, status in await region.notices_of(receiver, 2)] == ["firing", "resolved"]
        tried = await region.leader.test(region.leader.definitions()[0])
        assert [(one["channel"], one["taken"]) for one in tried] == [
            ("slack", False), ("webhook", True), ("email", False),
        ]  # fmt: skip
    assert region.incidents == [("alert-trouble", "orders-lost")]
    (message,) = region.messages
    assert message.startswith("spec.channels.0.slack, spec.channels.2.email: no longer a channel")
    assert "slack_configs or email_configs in Alertmanager's configuration" in message
    assert not [key for state in region.states for key in state.told if not key.startswith("webhook-")]


async def test_a_test_reaches_every_channel_and_changes_nothing(region: AlertRegion) -> None:
    async with hooks() as good, hooks() as bad:
        bad.down = True
        alert = definition({"webhook": {"url": good.url}}, {"webhook": {"url": bad.url}})
        first, second = await region.leader.test(alert)
        assert (first["taken"], second["taken"], second["why"]) == (True, False, "answered 503: not now")
        assert good.bodies[0]["test"] is True
    assert not region.log.appended
