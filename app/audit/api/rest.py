"""REST: audit plans, windows, and differences between tiers.

The workers that write the tables have the windows in their books, so a worker asks all workers for them.
"""

from __future__ import annotations

import asyncio
from functools import partial
from http import HTTPStatus
from typing import NamedTuple

import msgspec
from aiohttp import web

from app.audit.api import schemas as audit_schemas
from app.audit.definition import AUDIT_JOBS, AuditPlan, job_name
from app.audit.folds.comparison import WindowState
from app.audit.folds.plan_terms import PREFIX
from app.audit.folds.seals import check_author
from app.audit.folds.tier import PlanBounds
from app.audit.jobs.region_query import SHARE_PATH, BeingRead, NotKnown, own_share, unseen
from app.audit.query.topic_view import topic_rows
from app.audit.query.view import PlanOf, RegionCounts, Unseen, WindowQuery, verdict_rows, window_rows
from app.audit.topics.catalog import AuditsCatalog
from app.controllog.events import AuditPut
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
from app.definitions.registry import parse_audit
from app.definitions.schema_checks import check_schemas
from app.dispatch.dlq.query import BadQuery, parse_when
from app.kernel.clock import now_ms
from app.kernel.json_types import JsonObject
from app.offsets.api.rest import offset_errors_as_problems
from app.web.http import schemas as http_schemas
from app.web.http.context import ApiContext
from app.web.http.exports import FORMAT, NDJSON, listed, listing
from app.web.http.responses import ApiError, flag, json_response
from app.web.http.route_docs import ACTOR, JSON, PAGE, TEXT, AnswerDoc, Page, Param, described, repeated
from switchyard.audit.model.reports import BadReport, Report, Scope, checked

PUT = put_answers("audit plan")
DETAIL = {200: AnswerDoc({JSON: audit_schemas.AuditPlanDetail}, headers=("ETag",))}
TIMES = (
    Param(
        "from", TEXT, "windows that begin at this time or later: 2h (ago), an ISO 8601 time, or milliseconds"
    ),
    Param("to", TEXT, "windows that begin before this time, in the same formats"),
)
TOPIC = Param("topic", TEXT, "of this topic only")
PLACES = (
    TOPIC,
    Param("tier", TEXT, "of this tier only"),
    Param("cluster", TEXT, "of this cluster only"),
)
REPORTED_STATES = (
    WindowState.LOSSY,
    WindowState.DUPLICATED,
    WindowState.CORRUPTED,
    WindowState.LATE,
    WindowState.ABSENT,
)
STATE = Param(
    "state", repeated({"type": "string", "enum": [state.value for state in WindowState]}, len(WindowState)),
    f"verdicts of this state; repeatable; by default {', '.join(state.value for state in REPORTED_STATES)}",
)  # fmt: skip
WINDOW, VERDICT, TOPIC_ROW = (
    list(shape.__annotations__)
    for shape in (audit_schemas.AuditWindow, audit_schemas.AuditVerdict, audit_schemas.AuditTopic)
)
MOST_REPORTS_BYTES = 1 << 20  # as much as Kafka takes; clients drop reports that are refused here
_report = msgspec.json.Decoder(Report)


class CatalogAnswers(NamedTuple):
    """The catalog's answers for all known windows. Many rows take seconds, so a thread makes them. It must
    not ask the catalog, whose caches belong to the loop."""

    plans: dict[tuple[str, str], AuditPlan | None]
    bounds: dict[tuple[str, str], PlanBounds]
    oddities: dict[Scope, str]
    unseen: Unseen

    @classmethod
    def of(cls, audits: AuditsCatalog, known: RegionCounts) -> CatalogAnswers:
        """Asks the catalog; to be called on the loop."""
        scopes = {key.scope for key in known.windows}
        places = {(key.cluster, key.topic) for key in known.tiers} | {(s.cluster, s.topic) for s in scopes}
        return cls(
            {place: audits.plan_of(*place) for place in places},
            {place: audits.bounds_of(*place) for place in places},
            {scope: audits.oddity_of(scope) for scope in scopes},
            partial(unseen, audits),
        )

    def plan_of(self, cluster: str, topic: str) -> AuditPlan | None:
        return self.plans[cluster, topic]

    def bounds_of(self, cluster: str, topic: str) -> PlanBounds:
        return self.bounds[cluster, topic]

    def oddity_of(self, scope: Scope) -> str:
        return self.oddities[scope]

    @property
    def verdict_arguments(self) -> tuple[PlanOf, Unseen]:
        """Arguments of `verdict_rows`."""
        return self.plan_of, self.unseen


class AuditRoutes:
    """The handlers; `api` finds the runtime."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        plan_path = "/api/v1/audit/plans/{name}"
        return [
            web.get("/api/v1/audit/windows", offset_errors_as_problems(self.get_windows)),
            web.get("/api/v1/audit/loss", offset_errors_as_problems(self.get_loss)),
            web.get("/api/v1/audit/topics", offset_errors_as_problems(self.get_topics)),
            web.get(SHARE_PATH, offset_errors_as_problems(self.get_share)),
            web.post("/api/v1/audit/reports", self.post_reports),
            web.get("/api/v1/audit/plans", self.get_plans),
            web.get(plan_path, self.get_plan),
            web.put(plan_path, self.put_plan),
            web.delete(plan_path, self.delete_plan),
        ]

    # -- windows -----------------------------------------------------------------------------------

    @described(
        answers=listing(audit_schemas.Noted[audit_schemas.AuditWindow]),
        query=(*PLACES, *TIMES, *PAGE, FORMAT),
        problems=(409, 502),
    )
    async def get_windows(self, request: web.Request) -> web.StreamResponse:
        """The counts of each window, the newest first."""
        known = await self.known(_wanted(request))
        catalog = self._catalog_answers(known)
        rows = await asyncio.to_thread(window_rows, known, now_ms(), catalog.bounds_of, catalog.oddity_of)
        return await listed(request, rows, WINDOW, known.notes)

    @described(
        answers=listing(audit_schemas.Noted[audit_schemas.AuditVerdict]),
        query=(TOPIC, *TIMES, STATE, *PAGE, FORMAT), problems=(409, 502),
    )  # fmt: skip
    async def get_loss(self, request: web.Request) -> web.StreamResponse:
        """Differences between a tier and the tier before it, window by window, the newest first."""
        states = set(request.query.getall("state", [state.value for state in REPORTED_STATES]))
        if unknown := sorted(states - {state.value for state in WindowState}):
            known_states = ", ".join(state.value for state in WindowState)
            raise BadQuery(f"state={unknown[0][:40]!r}: no such state; there are {known_states}")
        known = await self.known(_wanted(request))
        verdicts = await asyncio.to_thread(
            verdict_rows, known, now_ms(), *self._catalog_answers(known).verdict_arguments
        )
        rows = [row for row in verdicts if row["state"] in states]
        return await listed(request, rows, VERDICT, known.notes)

    @described(
        answers=listing(audit_schemas.Noted[audit_schemas.AuditTopic]), query=(*TIMES, *PAGE, FORMAT),
        problems=(409, 502),
    )  # fmt: skip
    async def get_topics(self, request: web.Request) -> web.StreamResponse:
        """One row for each counted topic, with the worst state of its windows."""
        known = await self.known(_wanted(request))
        catalog, at_ms = self._catalog_answers(known), now_ms()

        def make_rows() -> list[JsonObject]:
            windows = window_rows(known, at_ms, catalog.bounds_of, catalog.oddity_of)
            verdicts = verdict_rows(known, at_ms, *catalog.verdict_arguments)
            return topic_rows(known, windows, verdicts, at_ms, catalog.bounds_of)

        return await listed(request, await asyncio.to_thread(make_rows), TOPIC_ROW, known.notes)

    def _catalog_answers(self, known: RegionCounts) -> CatalogAnswers:
        return CatalogAnswers.of(self._api.runtime.catalog.audits, known)

    @described({"type": "object"}, query=(*PLACES, *TIMES), problems=(409, 502))
    async def get_share(self, request: web.Request) -> web.Response:
        """The counts that this worker holds. Other workers ask for them."""
        share = await own_share(self._api.runtime.audit_books, _wanted(request))
        return web.Response(
            body=msgspec.json.encode(share), content_type=JSON, headers={"Cache-Control": "no-store"}
        )

    async def known(self, wanted: WindowQuery) -> RegionCounts:
        """The counts of all workers. Raises ApiError: a worker does not answer."""
        try:
            return await self._api.runtime.alerts.auditor.known(wanted)
        except BeingRead as error:
            raise ApiError(503, "Being read", f"{error}; ask again in seconds") from error
        except NotKnown as error:
            raise ApiError(502, "Not known", f"{error}; ask again in seconds") from error

    @described(
        audit_schemas.Taken, body={"type": "string"}, kinds=(NDJSON,), problems=(422,),
    )  # fmt: skip
    async def post_reports(self, request: web.Request) -> web.Response:
        """Takes clients' reports, one per line: all or none. A repeated report counts once."""
        try:
            body = await request.clone(client_max_size=MOST_REPORTS_BYTES).read()
            lines = [line for line in body.splitlines() if line.strip()]
            reports = [_of_client(_report.decode(line)) for line in lines]
        except (msgspec.DecodeError, BadReport, UnicodeDecodeError) as error:
            raise ApiError(422, "Bad report", f"{error}; nothing was taken") from error
        except RecursionError as error:
            detail = "a line nests lists or objects too deeply; nothing was taken"
            raise ApiError(400, HTTPStatus(400).phrase, detail) from error
        except web.HTTPRequestEntityTooLarge as error:
            detail = f"the reports are too large; at most {MOST_REPORTS_BYTES} bytes are taken at once"
            raise ApiError(413, HTTPStatus(413).phrase, detail) from error
        sender = self._api.runtime.audit_sender
        await asyncio.gather(*[await sender.send(report, is_clients=True) for report in reports])
        return json_response({"taken": len(reports)})

    # -- plans -------------------------------------------------------------------------------------

    @described(Page[audit_schemas.AuditPlanDetail], query=PAGE)
    async def get_plans(self, request: web.Request) -> web.Response:
        """All audit plans."""
        page = paged_definitions(self._api.runtime.control.view.audits.values(), request)
        return json_response({**page, "items": [self._detail(put) for put in page["items"]]})

    @described(answers=DETAIL, problems=(404,))
    async def get_plan(self, request: web.Request) -> web.Response:
        """One audit plan."""
        put = self._put_of(request)
        return json_response(self._detail(put), headers={"ETag": f'"{put.etag}"'})

    def _detail(self, put: AuditPut) -> JsonObject:
        name, runtime = put.key.removeprefix(PREFIX), self._api.runtime
        found, layout = runtime.catalog.audits.plan(name), runtime.catalog.audits.layout
        prefix = f"{AUDIT_JOBS}{job_name(name, '')}"
        owned = (job for job, held in runtime.control.view.assignments.items() if held.worker)
        reported = [
            job for beat in self._api.beats().values() for job in beat.jobs if job.job.startswith(prefix)
        ]
        return {
            "name": name,
            "definition": put.definition,
            "etag": put.etag,
            "clusters": [] if found is None or layout is None else found.clusters(layout),
            "jobs": sum(job.startswith(prefix) for job in owned),
            "lag_messages": sum(max(0, job.high_watermark - job.committed) for job in reported),
            "troubles": sorted({job.trouble for job in reported if job.trouble}),
            "deployed": {"at_ms": put.at_ms, "by": put.actor},
        }

    def _put_of(self, request: web.Request) -> AuditPut:
        name = request.match_info["name"]
        put = self._api.runtime.control.view.audits.get(f"{PREFIX}{name}")
        if put is None:
            detail = f"there is no audit plan {name[:100]!r}; GET /api/v1/audit/plans lists them"
            raise ApiError(404, "No such definition", detail)
        return put

    @described(
        answers=PUT, query=DRY_RUN, headers=(*MATCH, *ACTOR), body=AuditPlan, kinds=(JSON, *YAML),
        problems=(409, 412, 422),
    )  # fmt: skip
    async def put_plan(self, request: web.Request) -> web.Response:
        """Defines or changes an audit plan; 201 if it is new, else 200. `?dry_run=true` only checks it."""
        dry_run, body = flag(request, "dry_run"), await read_definition(request)
        audits = self._api.runtime.catalog.audits
        wanted, warnings = await asyncio.to_thread(
            parse_audit, body.data, layout=audits.layout, file=body.file, node=body.node
        )
        check_address(request, wanted.name)
        doubts = await check_schemas(wanted, self._api.runtime.schemas, body)
        current = self._api.runtime.control.view.audits.get(wanted.key)
        expected = condition(request, current)
        planned = plan({audit.key: audit for audit in audits.plans()}, [wanted])
        answer = await define(
            self._api, request, AuditPut, wanted, current, expected, planned, dry_run=dry_run
        )
        return defined(answer, warnings, current, doubts)

    @described(http_schemas.Deleted, headers=(*MATCH, *ACTOR), problems=(404, 412))
    async def delete_plan(self, request: web.Request) -> web.Response:
        """Deletes an audit plan. Its counts stay until they expire."""
        put = self._put_of(request)
        return await delete(self._api, request, put)


def _of_client(report: Report) -> Report:
    """The report, if a client may send it. Raises BadReport."""
    if report.complete_ms >= 0:
        raise BadReport(
            f"report {report.id} of {report.source}: complete_ms {report.complete_ms}: clients count from "
            "the beginning; leave it out"
        )
    check_author(report, is_worker=False)
    return checked(report)


def _wanted(request: web.Request) -> WindowQuery:
    """The query's windows. Raises BadQuery."""
    query = request.query
    return WindowQuery(
        query.get("topic", ""), query.get("tier", ""), query.get("cluster", ""),
        _time(query.get("from"), 0, "from"), _time(query.get("to"), 1 << 62, "to"),
    )  # fmt: skip


def _time(text: str | None, default: int, name: str) -> int:
    if text is None:
        return default
    if text == str(default):
        return default
    try:
        return parse_when(text, now_ms())
    except BadQuery as error:
        raise BadQuery(f"{name}: {error}") from error
