"""Alerts by REST: definitions, firing alerts with their notices, and tests of channels.

All state is in the control log, so every worker answers alike. A test is sent by the worker that gets the
request; its environment needs the variables that channels name, as every worker's does.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

from aiohttp import web

from app.alerts.api import schemas as alerts_schemas
from app.alerts.definition import PREFIX, AlertDefinition
from app.alerts.delivery.message_bodies import window_fields
from app.alerts.delivery.monitor import channel_failure
from app.alerts.delivery.notice import amount, commands
from app.alerts.delivery.sender import refusal
from app.alerts.egress_policy import inside_of
from app.alerts.rules import due
from app.controllog.alert_state import AlertState, LastNotice
from app.controllog.events import AlertPut
from app.definitions.api.requests import (
    DRY_RUN,
    MATCH,
    YAML,
    check_address,
    condition,
    define,
    defined,
    delete,
    paged_definitions,
    put_answers,
    read_definition,
)
from app.definitions.plan import plan
from app.definitions.registry import parse_alert
from app.kernel.clock import iso
from app.kernel.json_types import JsonObject
from app.web.http import schemas as http_schemas
from app.web.http.context import ApiContext
from app.web.http.responses import ApiError, flag, json_response, paged
from app.web.http.route_docs import ACTOR, JSON, PAGE, TEXT, AnswerDoc, Page, Param, described, repeated

PUT = put_answers("alert")
DETAIL = {200: AnswerDoc({JSON: alerts_schemas.AlertRule}, headers=("ETag",))}
STATES = ("firing", "pending", "resolved")
FILTERS = (
    Param("name", TEXT, "of this alert only"),
    Param("topic", TEXT, "of this topic only"),
    Param(
        "state", repeated({"type": "string", "enum": list(STATES)}, len(STATES)),
        "in this state (again: or); without it, all of them: what was resolved within a day, too",
    ),
)  # fmt: skip


class AlertRoutes:
    """The handlers."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        """All routes of alerts."""
        one = "/api/v1/alerts/{name}"
        return [
            web.get("/api/v1/alerts", self.get_alerts),
            web.get("/api/v1/alert-rules", self.get_rules),
            web.get(one, self.get_rule),
            web.put(one, self.put_rule),
            web.delete(one, self.delete_rule),
            web.post(one + "/test", self.post_test),
        ]

    # -- what fires --------------------------------------------------------------------------------

    @described(Page[alerts_schemas.Alert], query=(*FILTERS, *PAGE))
    async def get_alerts(self, request: web.Request) -> web.Response:
        """Alerts that fire, that are pending, and that were resolved within a day; the newest first."""
        states = request.query.getall("state", list(STATES))
        wanted = set(states)
        if unknown := sorted(wanted - set(STATES)):
            raise ApiError(400, "Bad query", f"state={unknown[0][:40]!r} must be {', '.join(STATES)}")
        if len(states) > len(STATES):
            raise ApiError(400, "Bad query", f"state is given {len(states)} times; give each value once")
        name, topic = request.query.get("name", ""), request.query.get("topic", "")
        found = [
            state
            for state in self._states()
            if state.state in wanted and name in ("", state.rule) and topic in ("", state.topic)
        ]
        found.sort(key=lambda state: (STATES.index(state.state), -state.since_ms, state.id))
        page = paged(found, request)
        return json_response({**page, "items": [self._alert_fields(state) for state in page["items"]]})

    def _states(self) -> Iterable[AlertState]:
        return self._api.runtime.control.view.alert_states.states.values()

    def _alert_fields(self, state: AlertState) -> JsonObject:
        definition = self._api.runtime.alerts.definition(state.rule)
        on = tuple(definition.spec.on) if definition else ()
        return {
            "id": state.id,
            "name": state.rule,
            "state": state.state,
            "severity": definition.spec.severity if definition else "unknown",
            "owner": definition.metadata.owner if definition else "",
            "on": list(on),
            "topic": state.topic,
            "from_tier": state.from_tier,
            "to_tier": state.to_tier,
            "group": state.reader or None,
            "what": amount(on, state.windows, more=state.more),
            "since_ms": state.since_ms,
            "since": iso(state.since_ms),
            "fired_ms": state.fired_ms or None,
            "over_ms": state.over_ms or None,
            "resolved_ms": state.resolved_ms or None,
            "aged": state.aged,
            "notice": state.notice,
            "windows": [window_fields(window) for window in reversed(state.windows)],
            "more_windows": state.more,
            "channels": [] if definition is None else self._channels(definition, state),
            "todo": [] if state.state == "resolved" else list(commands(on, state)),
        }

    def _channels(self, definition: AlertDefinition, state: AlertState | None = None) -> list[JsonObject]:
        """The channels of a definition, and the last notice that each took: of one alert, or of all."""
        states = [one for one in self._states() if one.rule == definition.name] if state is None else [state]
        everywhere = list(self._states())
        found = []
        for channel in definition.spec.channels:
            notices = [one.told.get(channel.key, LastNotice(0, 0)) for one in states]
            last = max(notices, key=lambda one: one.at_ms, default=LastNotice(0, 0))
            waits = any(channel.key in due(one, definition.rule) for one in states)
            trouble = channel_failure(everywhere, channel.key) if waits else None
            found.append(
                {
                    "channel": channel.kind,
                    "place": channel.place,
                    "notice": last.notice or None,
                    "at_ms": last.at_ms or None,
                    "waits": waits or not channel.target,
                    "trouble": trouble.why if trouble else channel.trouble,
                    "failing_ms": trouble.failing_ms if trouble else None,
                }
            )
        return found

    # -- definitions -------------------------------------------------------------------------------

    @described(Page[alerts_schemas.AlertRule], query=PAGE)
    async def get_rules(self, request: web.Request) -> web.Response:
        """The definition of every alert."""
        page = paged_definitions(self._api.runtime.control.view.alerts.values(), request)
        return json_response({**page, "items": [self._detail(put) for put in page["items"]]})

    @described(answers=DETAIL, problems=(404,))
    async def get_rule(self, request: web.Request) -> web.Response:
        """The definition of an alert."""
        put = self._put_of(request)
        return json_response(self._detail(put), headers={"ETag": f'"{put.etag}"'})

    def _detail(self, put: AlertPut) -> JsonObject:
        name = put.key.removeprefix(PREFIX)
        definition = self._api.runtime.alerts.definition(name)
        states = [state.state for state in self._states() if state.rule == name]
        return {
            "name": name,
            "definition": put.definition,
            "etag": put.etag,
            "firing": states.count("firing"),
            "pending": states.count("pending"),
            "channels": [] if definition is None else self._channels(definition),
            "deployed": {"at_ms": put.at_ms, "by": put.actor},
        }

    def _put_of(self, request: web.Request) -> AlertPut:
        name = request.match_info["name"]
        put = self._api.runtime.control.view.alerts.get(f"{PREFIX}{name}")
        if put is None:
            detail = f"there is no alert {name[:100]!r}; GET /api/v1/alert-rules lists them"
            raise ApiError(404, "No such definition", detail)
        return put

    @described(
        answers=PUT, query=DRY_RUN, headers=(*MATCH, *ACTOR), body=AlertDefinition, kinds=(JSON, *YAML),
        problems=(409, 412, 422),
    )  # fmt: skip
    async def put_rule(self, request: web.Request) -> web.Response:
        """Defines or changes an alert; 201, or 200 when it was there. `?dry_run=true` only checks."""
        dry_run, body = flag(request, "dry_run"), await read_definition(request)
        wanted, warnings = await asyncio.to_thread(parse_alert, body.data, file=body.file, node=body.node)
        check_address(request, wanted.name)
        if self._api.runtime.alerts.refuses_local:
            _check_places(wanted)
        current = self._api.runtime.control.view.alerts.get(wanted.key)
        expected = condition(request, current)
        there = {one.key: one for one in self._api.runtime.alerts.definitions()}
        planned = plan(there, [wanted])
        answer = await define(
            self._api, request, AlertPut, wanted, current, expected, planned, dry_run=dry_run
        )
        answer["warnings"] = [*answer["warnings"], *_unset(wanted, self._api.runtime.worker)]
        return defined(answer, warnings, current)

    @described(http_schemas.Deleted, headers=(*MATCH, *ACTOR), problems=(404, 412))
    async def delete_rule(self, request: web.Request) -> web.Response:
        """Deletes an alert. Its channels get no more messages, not even that a firing alert is resolved."""
        put = self._put_of(request)
        return await delete(self._api, request, put)

    @described(alerts_schemas.AlertTested, headers=ACTOR, problems=(404,))
    async def post_test(self, request: web.Request) -> web.Response:
        """Tells every channel of an alert that this is a test, and what became of it."""
        put = self._put_of(request)
        definition = self._api.runtime.alerts.definition(put.key.removeprefix(PREFIX))
        if definition is None:
            detail = f"this worker cannot read the definition of {put.key}; deploy it again, or ask another"
            raise ApiError(503, "Unreadable definition", detail)
        tried = await self._api.runtime.alerts.test(definition)
        return json_response({"name": definition.name, "worker": self._api.runtime.worker, "channels": tried})


def _check_places(definition: AlertDefinition) -> None:
    """Raises ApiError: this worker's configuration refuses the address of a channel."""
    for number, channel in enumerate(definition.spec.channels):
        if channel.target and (inside := inside_of(channel.target.url)):
            field = f"spec.channels.{number}.{channel.kind}.url"
            raise ApiError(422, "Refused address", f"{field}: {refusal(inside)}; name another host")


def _unset(definition: AlertDefinition, worker: str) -> list[str]:
    """Variables that are not set here."""
    names = {name for channel in definition.spec.channels for name in channel.variables}
    return [
        f"environment variable {name} is not set on {worker}; no notice arrives there before it is set on all"
        for name in sorted(names)
        if not os.environ.get(name)
    ]
