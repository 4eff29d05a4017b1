"""Alerts, on the region's leader: looks at the audit every few seconds, writes what changed into the control
log, and offers what is to be told to the channels.

Rules
1. What fires is decided by `app.alerts.rules`, and counts once it stands in the control log under this
   leader's term. Only what stands there is told: whoever leads next goes on with it.
2. A channel's word is written down afterwards: killed in between, the next leader tells the same once more,
   under the same id.
3. What cannot be known decides nothing. For how long is told after `UNKNOWN_TOLD_S`.
4. Nobody waits for a channel (`app.alerts.delivery.lanes`), nor the leader's rounds for any of this.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.alerts import rules as alerts_rules
from app.alerts.channel_definition import Channel
from app.alerts.definition import PREFIX, AlertDefinition
from app.alerts.delivery.lanes import NoticeDeliveries, ReportIncident
from app.alerts.delivery.notice import AlertNotice
from app.alerts.delivery.sender import NoticeSender, NotTaken
from app.audit.jobs.region_query import NotKnown, RegionQuery
from app.audit.query.view import WindowQuery
from app.controllog.alert_state import AlertState, AlertSubject, AlertWindow, LastNotice, alert_key
from app.controllog.definition_cache import DefinitionCache
from app.controllog.log import ControlLog
from app.kafka.client.topic_tail import bounded
from app.kernel.clock import now_ms

log = structlog.get_logger(__name__)

MONITOR_TICK_S = 1.0
EVALUATION_INTERVAL_S = 5.0
BUSY_SHARE = 20  # what takes long to look at is looked at rarely: a twentieth of the time
UNKNOWN_TOLD_S = 120.0
RESEND_INTERVAL_S = 60.0  # Alertmanager forgets what it does not hear of; several times within its patience
STATES_PER_WRITE = 500  # states that are written together
MONITOR_STOP_TIMEOUT_S = 5.0
TEST_NOTICE_TIMEOUT_S = 8.0  # whoever asked waits for it
TEST_GROUP = AlertSubject("", "test-topic", "regional", "aggregate")


class AlertMonitor(Service):
    """See the module.

    Attributes:
        deliveries: what is on its way, on the leader.
        looked_ms: when the audit was looked at last, 0: never here; `unknown`: why it could not be, "" if it
            could.
        left_out: alerts for which there is no room.
        auditor: asks all workers, for whoever asks for windows, too.
        refuses_local: nothing is told to addresses that lead inside (`app.alerts.egress_policy`).
    """

    def __init__(
        self,
        control: ControlLog,
        auditor: RegionQuery,
        may_act: Callable[[], bool],
        report_incident: ReportIncident,
        region: str,
        env: Mapping[str, str] = os.environ,
        *,
        refuses_local: bool = False,
    ) -> None:
        super().__init__()
        self._env = env
        self.refuses_local = refuses_local
        self.deliveries = NoticeDeliveries(self._sender(), report_incident)
        self.looked_ms = 0
        self.unknown = ""
        self.left_out = 0
        self.look_s = EVALUATION_INTERVAL_S
        self._control = control
        self.auditor = auditor
        self._may_act = may_act
        self._report_incident = report_incident
        self._region = region
        self._parsed = DefinitionCache(lambda: control.view.alerts, _parsed, self._unread)
        self._looked_s = float("-inf")
        self._since: Mapping[str, int] = {}  # topics of which older windows are not known
        self._took_s = 0.0
        self._known_s = float("-inf")
        self._told_unknown = self._told_many = False

    def definition(self, name: str) -> AlertDefinition | None:
        """As it stands in the control log, parsed once a change."""
        return self._parsed.get(f"{PREFIX}{name}")

    def definitions(self) -> list[AlertDefinition]:
        """Those that can be read, by name."""
        found = map(self._parsed.get, sorted(self._control.view.alerts))
        return [definition for definition in found if definition is not None]

    async def on_stop(self) -> None:
        await bounded(self.deliveries.stop(), MONITOR_STOP_TIMEOUT_S, "channels of alerts")

    @Service.task
    async def _tick_for_ever(self) -> None:
        while not self.should_stop:
            await self.sleep(MONITOR_TICK_S)
            if not self._may_act():
                self.deliveries.rest()
                self._known_s = time.monotonic()
                continue
            try:
                await self.tick()
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("alerts cannot be written down now", error=repr(error))
            except Exception:
                log.exception("a look at alerts failed and is made again")

    async def tick(self) -> None:
        """Goes on. Raises KafkaError, TimeoutError: it could not be written down, and is tried again."""
        view = self._control.view
        if not view.alerts and not view.alert_states.states:
            return
        term = view.term
        definitions = {definition.name: definition for definition in self.definitions()}
        rules = {name: definition.rule for name, definition in definitions.items()}
        rows = await self._evaluate(rules)
        outcomes = self.deliveries.take_outcomes()
        view = self._control.view
        defined = {key.removeprefix(PREFIX) for key in view.alerts}
        changed = alerts_rules.step(
            view.alert_states.states, rules, defined, rows, outcomes, now_ms(), term, self._since
        )
        refused, self._control.refused_alerts = self._control.refused_alerts, set()
        changed += alerts_rules.again(
            view.alert_states.states, refused - {state.id for state in changed}, term
        )
        view.drop_soon(map(alert_key, refused - view.alert_states.states.keys()))
        try:
            for start in range(0, len(changed), STATES_PER_WRITE):
                await self._control.append(*changed[start : start + STATES_PER_WRITE])
        except BaseException:
            self.deliveries.give_back(outcomes)
            self._control.refused_alerts |= refused
            raise
        if self._control.view.term == term and self._may_act():
            self._offer(definitions)

    async def _evaluate(self, rules: Mapping[str, alerts_rules.Rule]) -> list[dict[str, Any]] | None:
        """What is known now; None: nothing is, or it is not time yet."""
        now_s = time.monotonic()
        if not rules or now_s - self._looked_s < max(self.look_s, BUSY_SHARE * self._took_s):
            return None
        self._looked_s = now_s
        at_ms, within_ms = now_ms(), max(rule.within_ms for rule in rules.values())
        try:
            rows, self._since = await self.auditor.verdicts(
                WindowQuery(from_ms=max(0, at_ms - within_ms - self.auditor.widest_ms)), at_ms,
                lambda topic: any(rule.means(topic) for rule in rules.values()),
            )  # fmt: skip
        except NotKnown as error:
            self.unknown = str(error)
            if now_s - self._known_s >= UNKNOWN_TOLD_S and not self._told_unknown:
                self._told_unknown = True
                self._report_incident(
                    "alerts-blind", self._region, f"the audit cannot be looked at: {error}",
                    "no alert fires or is resolved until it can; if there is too much of it, "
                    "have every Alert look `within` a shorter time",
                )  # fmt: skip
            return None
        finally:
            self._took_s = time.monotonic() - now_s
        self._known_s, self.unknown, self._told_unknown, self.looked_ms = now_s, "", False, at_ms
        states, self.left_out = self._control.view.alert_states.states, 0
        if len(states) >= alerts_rules.MOST_LIVE:
            self.left_out = alerts_rules.left_out(states, alerts_rules.seen(rules.values(), rows, at_ms))
        if self.left_out and not self._told_many:
            self._report_incident(
                "alerts-left-out", self._region,
                f"{self.left_out} alerts more than the {alerts_rules.MOST_LIVE} there may be",
                "see audit loss: something large is wrong, or thresholds are too low",
            )  # fmt: skip
        self._told_many = bool(self.left_out)
        return rows

    # -- telling -----------------------------------------------------------------------------------

    def _offer(self, definitions: Mapping[str, AlertDefinition]) -> None:
        states = self._control.view.alert_states.states
        self.deliveries.keep({c.key for d in definitions.values() for c in d.spec.channels}, states.keys())
        now_s = time.monotonic()
        for state in list(states.values()):
            definition = definitions.get(state.rule)
            if definition is None or not state.notice:
                continue
            due = set(alerts_rules.due(state, definition.rule))
            notice = self.notice(definition, state)
            for channel in definition.spec.channels:
                if channel.key in due:
                    self.deliveries.offer(channel, notice)
                elif (
                    channel.kind == "alertmanager"
                    and state.state == "firing"
                    and now_s - self.deliveries.sent_s(channel, state.id) >= RESEND_INTERVAL_S
                ):
                    self.deliveries.offer(channel, notice, again=True)

    def notice(self, definition: AlertDefinition, state: AlertState) -> AlertNotice:
        """What is told of an alert."""
        spec = definition.spec
        return AlertNotice(
            state.id, state.notice, self._region, definition.metadata.owner, spec.severity, spec.on, state
        )

    async def test(self, definition: AlertDefinition) -> list[dict[str, Any]]:
        """Tells every channel that this is a test, from this worker, once; what became of it."""
        at_ms = now_ms()
        window = AlertWindow(
            at_ms - at_ms % 600_000 - 600_000, at_ms - at_ms % 600_000, "lossy", 1000, 999, 1
        )
        state = AlertState(
            at_ms=at_ms, id=f"test-{definition.name}-{at_ms:x}", term=0, state="firing", since_ms=at_ms,
            fired_ms=at_ms, windows=(window,), notice=1,
            **TEST_GROUP._replace(rule=definition.name)._asdict(),
        )  # fmt: skip
        notice = self.notice(definition, state)._replace(is_test=True)
        sender = self._sender()
        try:
            tried = (_tried(sender, channel, notice) for channel in definition.spec.channels)
            return list(await asyncio.gather(*tried))
        finally:
            await sender.close()

    def _sender(self) -> NoticeSender:
        return NoticeSender(self._env, refuses_local=self.refuses_local)

    def _unread(self, key: str, why: str) -> None:
        self._report_incident("alert-trouble", key.removeprefix(PREFIX), why, "deploy the alert again")


async def _tried(sender: NoticeSender, channel: Channel, notice: AlertNotice) -> dict[str, Any]:
    try:
        await sender.send(channel, notice, TEST_NOTICE_TIMEOUT_S)
    except NotTaken as error:
        why = str(error)
    else:
        why = ""
    return {"channel": channel.kind, "place": channel.place, "taken": not why, "why": why}


def _parsed(_: str, data: Mapping[str, Any]) -> AlertDefinition:
    return AlertDefinition.from_wire(data)


def channel_failure(states: Iterable[AlertState], channel: str) -> LastNotice | None:
    """Why a channel takes nothing, and since when, by what stands in the control log of any of these.
    None: it takes what comes."""
    failing = [one.told[channel] for one in states if channel in one.told and one.told[channel].why]
    if not failing:
        return None
    newest = max(failing, key=lambda told: told.failing_ms)
    return msgspec.structs.replace(newest, failing_ms=min(told.failing_ms for told in failing))
