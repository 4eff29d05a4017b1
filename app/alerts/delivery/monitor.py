"""The region's leader evaluates alerts every few seconds, logs what changed, and sends notices to channels.

Rules
1. `app.alerts.rules` decides. A change counts once the control log has it under this leader's term, and only
   then the leader sends a notice. So the next leader continues from the log.
2. The leader records that a channel took a notice after the channel answered. If the leader is killed in
   between, the next one sends the same notice again, under the same id.
3. Without verdicts nothing fires and nothing is resolved; after `UNKNOWN_REPORTED_S` that is an incident.
4. Neither this service nor the leader's rounds wait for a channel (`app.alerts.delivery.lanes`).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec
import structlog
from aiokafka.errors import KafkaError
from mode import Service

from app.alerts import rules as alerts_rules
from app.alerts.channel_definition import REMOVED, REMOVED_REMEDY, Channel
from app.alerts.definition import PREFIX, AlertDefinition
from app.alerts.delivery.lanes import NoticeDeliveries
from app.alerts.delivery.notice import AlertNotice
from app.alerts.delivery.sender import NoticeSender, NotTaken
from app.audit.jobs.region_query import NotKnown, RegionQuery
from app.audit.query.view import WindowQuery
from app.controllog.alert_state import AlertState, AlertSubject, AlertWindow, LastNotice, alert_key
from app.controllog.definition_cache import DefinitionCache
from app.controllog.log import ControlLog
from app.kafka.client.topic_tail import bounded
from app.kernel.clock import now_ms
from app.kernel.incidents import IsOver, ReportIncident
from app.kernel.json_types import JsonMapping, JsonObject

log = structlog.get_logger(__name__)

MONITOR_TICK_S = 1.0
EVALUATION_INTERVAL_S = 5.0
BUSY_SHARE = 20  # evaluations take at most a twentieth of the time
UNKNOWN_REPORTED_S = 120.0
RESEND_INTERVAL_S = 60.0  # several times before Alertmanager resolves the alert
STATES_PER_WRITE = 500  # states that are written together
MONITOR_STOP_TIMEOUT_S = 5.0
TEST_NOTICE_TIMEOUT_S = 8.0  # the request waits for it
TEST_GROUP = AlertSubject("", "test-topic", "regional", "aggregate")


class AlertMonitor(Service):
    """Evaluates the alerts, and sends their notices, on the leader.

    Attributes:
        deliveries: The leader's notices that no channel took yet.
        looked_ms: The time of the last evaluation by this worker; 0: none.
        unknown: Why the last evaluation got no verdicts; "" if it got them.
        left_out: Subjects that match a rule and have no alert, because there are too many.
        auditor: Requests verdicts from all workers; the API uses it, too.
        refuses_local: Channels must not lead to addresses near a worker (`app.alerts.egress_policy`).
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
        self._parsed = DefinitionCache(lambda: control.view.alerts, self._parse, self._unread)
        self._looked_s = float("-inf")
        self._since: Mapping[str, int] = {}  # topics whose older windows are not known
        self._took_s = 0.0
        self._known_s = float("-inf")
        self._reported_unknown = self._reported_many = False

    def definition(self, name: str) -> AlertDefinition | None:
        """The alert in the control log; None if it does not exist or cannot be read."""
        return self._parsed.get(f"{PREFIX}{name}")

    def definitions(self) -> list[AlertDefinition]:
        """All alerts that this version can read, by name."""
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
                self._reported_unknown = self._reported_many = False
                continue
            try:
                await self.tick()
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("alerts cannot be written to the control log now", error=repr(error))
            except Exception:
                log.exception("an evaluation of alerts failed; the leader evaluates them again")

    async def tick(self) -> None:
        """Evaluates, writes and sends once. Raises KafkaError, TimeoutError: writing failed; the next tick
        repeats it."""
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

    async def _evaluate(self, rules: Mapping[str, alerts_rules.Rule]) -> list[JsonObject] | None:
        """The verdicts; None if they are unknown, or if it is too early for the next evaluation."""
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
            if now_s - self._known_s >= UNKNOWN_REPORTED_S and not self._reported_unknown:
                self._reported_unknown = True
                self._report_incident(
                    "alerts-blind", self._region, f"the audit cannot be looked at: {error}",
                    "no alert fires or is resolved until it can; if there is too much of it, "
                    "have every Alert look `within` a shorter time",
                    lambda: not self._reported_unknown,
                )  # fmt: skip
            return None
        finally:
            self._took_s = time.monotonic() - now_s
        self._known_s, self.unknown, self._reported_unknown, self.looked_ms = now_s, "", False, at_ms
        states, self.left_out = self._control.view.alert_states.states, 0
        if len(states) >= alerts_rules.MOST_LIVE:
            self.left_out = alerts_rules.left_out(states, alerts_rules.seen(rules.values(), rows, at_ms))
        is_new, self._reported_many = not self._reported_many, bool(self.left_out)
        if self.left_out and is_new:
            self._report_incident(
                "alerts-left-out", self._region,
                f"{self.left_out} alerts more than the {alerts_rules.MOST_LIVE} there may be",
                "see audit loss: something large is wrong, or thresholds are too low",
                lambda: not self._reported_many,
            )  # fmt: skip
        return rows

    # -- notices -----------------------------------------------------------------------------------

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
        """The newest notice of an alert."""
        spec = definition.spec
        return AlertNotice(
            state.id, state.notice, self._region, definition.metadata.owner, spec.severity, spec.on, state
        )

    async def test(self, definition: AlertDefinition) -> list[JsonObject]:
        """Sends a test from this worker to every channel, once, and returns the channels' results."""
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

    def _parse(self, key: str, data: JsonMapping) -> AlertDefinition:
        """A stored definition. Channels that an earlier version had become an incident, and get nothing."""
        definition = AlertDefinition.from_wire(data)
        channels = enumerate(definition.spec.channels)
        removed = [f"spec.channels.{number}.{one.kind}" for number, one in channels if not one.target]
        if removed:
            self._report_incident(
                "alert-trouble", definition.name, f"{', '.join(removed)}: {REMOVED}",
                f"{REMOVED_REMEDY}; then deploy the alert again",
                self._parsed.has_changed(key),
            )  # fmt: skip
        return definition

    def _unread(self, key: str, why: str, is_over: IsOver) -> None:
        name = key.removeprefix(PREFIX)
        self._report_incident("alert-trouble", name, why, "deploy the alert again", is_over)


async def _tried(sender: NoticeSender, channel: Channel, notice: AlertNotice) -> JsonObject:
    try:
        await sender.send(channel, notice, TEST_NOTICE_TIMEOUT_S)
    except NotTaken as error:
        why = str(error)
    else:
        why = ""
    return {"channel": channel.kind, "place": channel.place, "taken": not why, "why": why}


def channel_failure(states: Iterable[AlertState], channel: str) -> LastNotice | None:
    """Why a channel takes no notices, and since when, as the control log says; None: it takes them."""
    failing = [one.told[channel] for one in states if channel in one.told and one.told[channel].why]
    if not failing:
        return None
    newest = max(failing, key=lambda notice: notice.failing_ms)
    return msgspec.structs.replace(newest, failing_ms=min(notice.failing_ms for notice in failing))
