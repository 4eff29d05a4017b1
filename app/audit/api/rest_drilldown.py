"""REST: a window's missing records, one by one, and copying them again.

Reading logs takes long, so the leader does it, as an operation. It keeps the answer for a while and serves it
in pages. So a window is read once, whichever worker answers, and no two workers copy the same records.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

import orjson
import structlog
from aiohttp import web

from app.audit.api import schemas
from app.audit.api.rest import AuditRoutes
from app.audit.drilldown import search
from app.audit.drilldown.repair import CopiedAgain, copy_again, missing_records, targets
from app.audit.drilldown.search import AuditedDifference, drill
from app.audit.drilldown.sides import NotReadable, Question, SideFinder
from app.audit.folds.comparison import WindowState
from app.audit.folds.tier import lateness
from app.audit.jobs.region_query import unseen
from app.audit.query.view import RegionCounts, WindowQuery, verdict_rows
from app.controllog.events import OperatorAct
from app.dispatch.dlq.query import BadQuery, parse_when
from app.kernel.clock import now_ms
from app.kernel.json_types import JsonMapping, JsonObject
from app.offsets.api.rest import offset_errors_as_problems
from app.web.http import request_bodies
from app.web.http.context import ApiContext
from app.web.http.exports import CSV, FORMAT, NDJSON, check_whole, csv_lines, format_of
from app.web.http.forwarding import FORWARDED_CHANGE_TIMEOUT_S, HOP_HEADER, ask_worker
from app.web.http.operations import STARTED, TrackedOperation
from app.web.http.operator_requests import actor_of, flag_of, read_body, when_of
from app.web.http.responses import ApiError, errors_as_problems, json_response, paged
from app.web.http.route_docs import ACTOR, JSON, PAGE, TEXT, AnswerDoc, Param, described
from switchyard.audit.model.fingerprint import Fingerprint
from switchyard.audit.model.places import group_of
from switchyard.audit.model.totals import NO_TOTALS

log = structlog.get_logger(__name__)

PATH = "/api/v1/audit/missing"
INLINE_ANSWER_TIMEOUT_S = 3.0  # a reading that takes less is answered at once
CACHED_ANSWER_TTL_S = 60.0
CACHED_ANSWERS = 8  # answers, of some megabytes each
COLUMNS = ("kind", "id", "key", "at", "cluster", "topic", "partition", "offset", "copy_cluster", "copy_topic",
           "copy_partition", "copy_offset", "one_of", "why")  # fmt: skip
SETTLED = {
    WindowState.OK.value,
    WindowState.LOSSY.value,
    WindowState.DUPLICATED.value,
    WindowState.CORRUPTED.value,
    WindowState.LATE.value,
}
QUERY_PARAMS = (
    Param("topic", TEXT, "the topic; required"),
    Param("from_tier", TEXT, "the tier that had the records, such as regional; required"),
    Param("to_tier", TEXT, "the tier where they should be, such as aggregate; required"),
    Param("start", TEXT, "when the window begins: an ISO 8601 time (UTC where it names no zone), or "
          "milliseconds; required"),
    Param("group", TEXT, "the consumer group, if several have finished the topic"),
    Param("again", {"type": "boolean", "default": False}, "read the logs again, even if an answer is cached"),
    FORMAT,
)  # fmt: skip
FOUND = {200: AnswerDoc({JSON: schemas.AuditMissing, CSV: TEXT, NDJSON: TEXT}), **STARTED}
FORESEEN = {200: AnswerDoc({JSON: schemas.AuditCopyForeseen}, "what would be copied"), **STARTED}

_readable = errors_as_problems((NotReadable, 409, "Not to be read"))


class AuditedWindow(NamedTuple):
    """The audit's verdict on a window. `state` None: the audit does not compare the two tiers there.
    `is_closed`: the verdict is final. `difference` None: not known yet."""

    state: str | None
    is_closed: bool
    difference: AuditedDifference | None
    lateness_ms: int


class CachedAnswer(NamedTuple):
    """An answer, and the audit's verdict at that time."""

    answer: search.SearchResult
    verdict: AuditedWindow
    at_ms: int
    at_s: float


class AuditMissingRoutes:
    """The handlers; `api` finds the runtime, `audit` the windows."""

    def __init__(self, api: ApiContext, audit: AuditRoutes) -> None:
        self._api = api
        self._audit = audit
        self._cache: OrderedDict[Question, CachedAnswer] = OrderedDict()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(PATH, offset_errors_as_problems(_readable(self.get_missing))),
            web.post("/api/v1/audit/copy-again", offset_errors_as_problems(_readable(self.post_copy_again))),
        ]

    # -- missing records -------------------------------------------------------------------------

    @described(answers=FOUND, query=(*QUERY_PARAMS, *PAGE), problems=(409, 502))
    async def get_missing(self, request: web.Request) -> web.Response:
        """A window's records that did not come from one tier to another, and doubled or altered ones.

        202 while the logs are being read: watch the operation, then ask again.
        """
        query = request.query
        question = _question(lambda name: query.get(name, ""), parse_when)
        form, again = format_of(request), query.get("again", "false")
        if form != "json":
            check_whole(request, form)
        if again not in {"true", "false"}:
            raise BadQuery("again is true or false")
        leader = self._leader(request)
        if leader:
            return await self._from_leader(request, leader, form)
        age_s = (
            0.0
            if again == "true"
            else CACHED_ANSWER_TTL_S
            if query.get("cursor", "0") == "0"
            else float("inf")
        )
        found = await self._search(request, question, age_s)
        if isinstance(found, TrackedOperation):
            return _started_response(found)
        answer, verdict = found.answer, found.verdict
        rows = search.rows(answer)
        if form != "json":
            return _file(form, rows)
        fields = {**search.result_fields(answer), "state": verdict.state, "looked_ms": found.at_ms}
        return json_response({**fields, **paged(rows, request)})

    async def _from_leader(self, request: web.Request, leader: str, form: str) -> web.Response:
        """The leader's answer as this worker's."""
        query = {name: value for name, value in request.query.items() if name != "format"}
        if form != "json":
            query |= {"limit": "1000"}
        rows: list[JsonObject] = []
        while True:
            status, content = await ask_worker(
                self._api,
                request,
                leader,
                path=f"{PATH}?{urlencode(query)}",
                patience_s=FORWARDED_CHANGE_TIMEOUT_S,
            )
            if status != 200 or form == "json":
                return _relay(status, content)
            page = orjson.loads(content)
            rows += page["items"]
            if page["next"] is None:
                return _file(form, rows)
            query |= {"cursor": page["next"], "again": "false"}

    async def _search(
        self, request: web.Request, question: Question, age_s: float
    ) -> CachedAnswer | TrackedOperation:
        """The answer: a cached one if it is younger than `age_s`. If reading takes longer than
        `INLINE_ANSWER_TIMEOUT_S`, the operation that reads."""
        known = self._cache.get(question)
        if known is not None and time.monotonic() - known.at_s < age_s:
            return known
        runtime = self._api.runtime
        SideFinder(runtime, question).plans()  # refuses a wrong question now
        operations, subject = self._api.operations, str(question)
        op = operations.running("missing", subject)
        if op is None:
            verdict = await self._verdict(question)

            async def work(report_progress: Callable[[JsonObject], None]) -> JsonObject:
                cached = await self._drill(question, verdict, report_progress)
                return {**search.result_fields(cached.answer), "state": cached.verdict.state}

            name = f"missing-{uuid.uuid4().hex[:12]}"
            op = operations.start(name, "missing", subject, actor_of(request), work)
        if op.task is not None:
            await asyncio.wait([op.task], timeout=INLINE_ANSWER_TIMEOUT_S)
        if isinstance(op.failure, NotReadable):
            raise NotReadable(str(op.failure))  # asking again would not help
        if op.failure is not None:
            raise ApiError(502, "Not read", f"{op.error}; ask again in seconds")
        # Another request may have replaced the answer meanwhile, or its reading may have pushed it out.
        return op if op.state != "done" else self._cache.get(question, op)

    async def _drill(
        self, question: Question, verdict: AuditedWindow, report_progress: Callable[[JsonObject], None]
    ) -> CachedAnswer:
        answer = await drill(
            self._api.runtime,
            question,
            report_progress,
            lateness_ms=verdict.lateness_ms,
            difference=verdict.difference,
        )
        cached = self._cache[question] = CachedAnswer(answer, verdict, now_ms(), time.monotonic())
        self._cache.move_to_end(question)
        while len(self._cache) > CACHED_ANSWERS:
            self._cache.popitem(last=False)
        return cached

    async def _verdict(self, question: Question) -> AuditedWindow:
        """The audit's verdict. Raises ApiError: a worker does not answer; NotReadable: several groups match,
        or none."""
        topic, before, after, start_ms, group = question
        known = await self._audit.known(WindowQuery(topic, from_ms=start_ms, before_ms=start_ms + 1))
        audits = self._api.runtime.catalog.audits
        rows = verdict_rows(known, now_ms(), audits.plan_of, partial(unseen, audits))
        late_ms = 0
        for key, record in known.tiers.items():
            late_ms = max(late_ms, lateness([record], audits.bounds_of(key.cluster, topic)))
        wanted = topic, before, after, start_ms
        rows = [r for r in rows if wanted == (r["topic"], r["from_tier"], r["to_tier"], r["start_ms"])]
        groups = sorted(str(row["group"]) for row in rows if row["group"])
        if group and group not in groups:
            compared = f"compared are: {', '.join(groups)}" if groups else "no group is"
            raise NotReadable(f"group {group[:100]!r} is not compared there; {compared}")
        rows = [row for row in rows if not group or row["group"] == group]
        if not rows:
            return AuditedWindow(None, False, None, late_ms)
        if len(rows) > 1:
            raise NotReadable(
                f"groups {', '.join(groups)} are compared there separately; name one of them as group"
            )
        row = rows[0]
        is_closed = row["state"] in SETTLED and row["closed"]
        surplus, ids = row["from_count"] - row["to_count"], _ids(known, question, row["group"] or "")
        return AuditedWindow(
            row["state"], is_closed, AuditedDifference(surplus, ids) if is_closed else None, late_ms
        )

    # -- copying again -----------------------------------------------------------------------------

    @described(answers=FORESEEN, headers=ACTOR, body=request_bodies.CopyAgainBody, problems=(409, 502))
    async def post_copy_again(self, request: web.Request) -> web.Response:
        """Copies missing records again, from where they still are; without `execute` counts them only.

        It searches the missing records again before it copies, so that no record is copied twice. At the end
        the operation's `progress` counts records: `copied`, `there` already, `left` (gone or unreadable),
        `refused` by the destination. `refused_records` names the first of the refused.
        """
        body = await read_body(request, request_bodies.CopyAgainBody)
        question = _question(lambda name: body.get(name, ""), lambda *_: when_of(body, "start"))
        execute = flag_of(body, "execute")
        leader = self._leader(request)
        if leader:
            return _relay(*await ask_worker(self._api, request, leader, dict(body)))
        verdict = await self._verdict(question)
        if not verdict.is_closed:
            raise ApiError(
                409, "Not final", f"the window is {verdict.state or 'not compared'}, so records may still "
                "arrive, and copies would be duplicates; ask again once both tiers have closed it",
            )  # fmt: skip
        if not execute:
            found = await self._search(request, question, CACHED_ANSWER_TTL_S)
            if isinstance(found, TrackedOperation):
                return _started_response(found)
            targets(found.answer)
            many = sum(map(len, missing_records(found.answer).values()))
            return json_response(
                {"execute": False, "missing": many, "state": verdict.state, "complete": found.answer.is_whole}
            )
        SideFinder(self._api.runtime, question).plans()
        self._must_lead()
        if self._api.runtime.draining:
            raise ApiError(503, "Stopping", "this worker is stopping; ask another one")
        actor = actor_of(request)

        async def work(report_progress: Callable[[JsonObject], None]) -> JsonObject:
            return await self._copy(question, verdict, actor, report_progress)

        name = f"copy-again-{uuid.uuid4().hex[:12]}"
        op = self._api.operations.start(name, "copy-again", str(question), actor, work)
        return _started_response(op)

    async def _copy(
        self,
        question: Question,
        verdict: AuditedWindow,
        actor: str,
        report_progress: Callable[[JsonObject], None],
    ) -> JsonObject:
        runtime = self._api.runtime
        cached = await self._drill(question, verdict, report_progress)
        self._cache.pop(question, None)  # after the copies, other records are missing
        self._must_lead()  # reading may have taken long
        targets(cached.answer)
        done: CopiedAgain | None = None
        try:
            done = await copy_again(runtime, cached.answer, report_progress)
        finally:
            many = sum(map(len, missing_records(cached.answer).values()))
            copied = "some" if done is None else done.copied  # after a failure the number is unknown
            detail = (
                f"{copied} of {many} missing records of the window "
                f"{cached.answer.window.start_ms} copied again from "
                f"{question.from_tier} to {question.to_tier}{_trouble(done)}"
            )
            event = OperatorAct(
                at_ms=now_ms(), subject=question.topic, action="audit-copy-again", detail=detail, actor=actor
            )
            if many:
                await self._record(event)
        fields = search.result_fields(cached.answer)
        return {**fields, **done.to_json(), "state": verdict.state}

    async def _record(self, event: OperatorAct) -> None:
        try:
            await self._api.runtime.control.append(event)
        except Exception as error:  # noqa: BLE001 - the copies are made; an error would deny them
            log.error("an operator's act is not in the control log", act=str(event), error=repr(error))

    def _must_lead(self) -> None:
        """Raises ApiError: this worker does not lead. Two workers that copy at once would copy twice."""
        if not self._api.runtime.leader.leads:
            detail = "only the region's leader copies, and this worker does not lead; ask again in seconds"
            raise ApiError(503, "Not the leader", detail)

    def _leader(self, request: web.Request) -> str:
        """The worker that answers; "": this one."""
        runtime = self._api.runtime
        leader = runtime.control.view.leader
        return leader if leader and not runtime.leader.leads and not request.headers.get(HOP_HEADER) else ""


def _question(of: Callable[[str], Any], time_of: Callable[[str, int], int]) -> Question:
    """The question in a query or a body. Raises BadQuery."""
    for name in ("topic", "from_tier", "to_tier", "start"):
        if not of(name):
            raise BadQuery(f"{name}: say which; a window is named by topic, from_tier, to_tier and start")
    topic, before, after = of("topic"), of("from_tier"), of("to_tier")
    group = of("group") or ""
    if not all(isinstance(text, str) for text in (topic, before, after, group)):
        raise BadQuery("topic, from_tier, to_tier and group are names")
    return Question(topic, before, after, time_of(of("start"), now_ms()), group)


def _ids(known: RegionCounts, question: Question, group: str) -> Fingerprint | None:
    """The sum of upstream's ids less downstream's; None: not all records have an id. A `group` ("": none) is
    compared with its own cluster alone, if that is counted."""
    found = {question.from_tier: NO_TOTALS, question.to_tier: NO_TOTALS}
    upstream = {key.cluster for key in known.tiers if key.tier == question.from_tier}
    of_group = {group_of(key.cluster) for key in known.tiers if key.tier == question.to_tier}
    own = {cluster for cluster, name in of_group if name == group} & upstream if group else set()
    for key, record in known.windows.items():
        if key.start_ms != question.start_ms or key.tier not in found:
            continue
        is_meant = group_of(key.cluster)[1] == group if key.tier == question.to_tier else True
        if is_meant and (key.tier == question.to_tier or not own or key.cluster in own):
            found[key.tier] = found[key.tier].plus(record.totals).plus(record.late)
    before, after = found[question.from_tier], found[question.to_tier]
    if before.identified != before.count or after.identified != after.count:
        return None
    return before.ids.minus(after.ids)


def _trouble(done: CopiedAgain | None) -> str:
    """Why not all records were copied, after "; "."""
    if done is None:
        return "; not all of them"
    left = f"; {done.left} could not be read any more" if done.left else ""
    if not done.refused:
        return left
    named = "; ".join(
        f"{refused.place}, offset {refused.offset}: {refused.why}" for refused in done.refused_records
    )
    return f"{left}; the destination refused {done.refused}: {named}"


def _started_response(op: TrackedOperation) -> web.Response:
    return json_response(op.to_json(), 202, {"Location": f"/api/v1/operations/{op.id}"})


def _relay(status: int, content: bytes) -> web.Response:
    """Another worker's answer as this worker's."""
    headers = {"Cache-Control": "no-store"}
    if status == 202:
        headers["Location"] = f"/api/v1/operations/{orjson.loads(content)['id']}"
    kind = JSON if status < 400 else "application/problem+json"
    return web.Response(body=content, status=status, content_type=kind, headers=headers)


def flat(row: JsonMapping) -> JsonObject:
    """A finding as one row of a table."""
    found = {**row, **dict.fromkeys(COLUMNS[4:12])}
    for prefix, place in (("", row["source"]), ("copy_", row["copy"])):
        found |= {f"{prefix}{name}": value for name, value in (place or {}).items()}
    return {name: found[name] for name in COLUMNS}


def _file(form: str, rows: list[JsonObject]) -> web.Response:
    """All rows as CSV, or as JSON lines."""
    if form == "csv":
        kind, lines = f"{CSV}; charset=utf-8", [[flat(row)[name] for name in COLUMNS] for row in rows]
        body = csv_lines([COLUMNS, *lines])
    else:
        kind, body = NDJSON, b"".join(orjson.dumps(row) + b"\n" for row in rows)
    return web.Response(body=body, headers={"Content-Type": kind, "Cache-Control": "no-store"})
