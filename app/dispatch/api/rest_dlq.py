"""The REST calls of the DLQ tools: single letters, counts, exports, merges and purges.

Merges and purges answer with a forecast (200), and act only with `"execute": true` (202, an operation). A
request that repeats the forecast's bounds as `ranges` touches no letter that arrived later.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import structlog
from aiohttp import web

from app.dispatch.api import dlq_view, schemas_dlq
from app.dispatch.definition import Workload
from app.dispatch.dlq.letter import described as letter_described
from app.dispatch.dlq.merge import Merger
from app.dispatch.dlq.operation_history import choose, merges_of
from app.dispatch.dlq.operation_progress import OperationTerms, check_operation
from app.dispatch.dlq.purge import foresee_purge, purge, purge_chosen
from app.dispatch.dlq.query import MAX_ITEMS, MAX_NUMBER, MAX_TEXT_CHARS, BadQuery, LetterQuery, parse_when
from app.dispatch.dlq.reader import NoQueue, queue_ends, read_one
from app.dispatch.dlq.rules import DEFAULT_RATE, Span, bounded
from app.dispatch.dlq.survey import foresee, lines, stats
from app.kernel.clock import now_ms
from app.kernel.json_types import JsonMapping, JsonObject
from app.web.http import request_bodies
from app.web.http.context import ApiContext
from app.web.http.operations import STARTED, ReportProgress, Work
from app.web.http.operator_requests import actor_of, check_fields, flag_of, read_body, when_of
from app.web.http.responses import ApiError, errors_as_problems, is_number, json_response, number
from app.web.http.route_docs import ACTOR, PAGE, TEXT, AnswerDoc, Page, Param, described, repeated, whole

if TYPE_CHECKING:
    from app.kafka.client.cluster import ClusterClient

log = structlog.get_logger(__name__)

SURVEY_TIMEOUT_S = 8.0  # for counting letters; the answer says whether all were counted
WHEN = '"2h" (ago), an ISO 8601 time (UTC unless it names a zone), or milliseconds'
BOUNDED = {"type": "string", "maxLength": MAX_TEXT_CHARS}
LETTERS = (  # as `query_of` reads them
    Param("reason", BOUNDED, "text that the reason contains; between slashes: an RE2 expression"),
    Param(
        "code", repeated({**TEXT, "pattern": "^[A-Za-z0-9_]{1,40}$"}, MAX_ITEMS), "one of these status names"
    ),
    Param("since", TEXT, f"moved here at this time or later: {WHEN}"),
    Param("until", TEXT, f"moved here before this time: {WHEN}"),
    Param("key", BOUNDED, "the whole key: text, or base64:..."),
    Param("attempt_min", whole(0, MAX_NUMBER), "delivered at least this often"),
    Param("partition", repeated(whole(0, MAX_NUMBER), MAX_ITEMS), "one of these"),
)
CURSOR = {"type": "string", "pattern": "^([0-9]{1,18}:[0-9]{1,18}(,[0-9]{1,18}:[0-9]{1,18})*)?$"}
EXPORT = {
    200: AnswerDoc(
        {"application/x-ndjson": {"type": "string"}}, "one letter per line", ("X-Switchyard-Offsets",)
    )
}


dlq_errors_as_problems = errors_as_problems((BadQuery, 400, "Bad query"), (NoQueue, 404, "No queue"))


class DlqTools:
    """The handlers."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        path = "/api/v1/dlq/{group}/{topic}"
        return [
            web.get(path, self.get_dlq),
            web.get(path + "/messages", dlq_errors_as_problems(self.get_letters)),
            web.get(path + "/messages/{partition}/{offset}", dlq_errors_as_problems(self.get_letter)),
            web.get(path + "/stats", dlq_errors_as_problems(self.get_stats)),
            web.get(path + "/merges", dlq_errors_as_problems(self.get_merges)),
            web.get(path + "/export", dlq_errors_as_problems(self.export), allow_head=False),
            web.post(path + "/merge", dlq_errors_as_problems(self.merge)),
            web.post(path + "/purge", dlq_errors_as_problems(self.purge)),
        ]

    # -- looking ---------------------------------------------------------------------------------

    @described(schemas_dlq.Queue, problems=(404, 502))
    async def get_dlq(self, request: web.Request) -> web.Response:
        """The number of messages in the dead letter queue, by partition."""
        workload, client = await self._queue(request)
        return json_response(await dlq_view.sizes(client, workload))

    @described(
        schemas_dlq.FoundPage,
        query=(
            *LETTERS,
            Param("limit", whole(1, 500, 50), "how many"),
            Param("cursor", CURSOR, PAGE[1].about),
        ),
        problems=(404, 502),
    )
    async def get_letters(self, request: web.Request) -> web.Response:
        """The dead letters, newest first; by reason, code, since, until, key, attempt_min, partition."""
        query, limit = query_of(request), number(request, "limit", 50, 1, 500)
        workload, client = await self._queue(request)
        cursor = request.query.get("cursor", "")
        return json_response(await dlq_view.newest(client, workload, limit, cursor, query))

    @described(schemas_dlq.Letter, problems=(404, 502))
    async def get_letter(self, request: web.Request) -> web.Response:
        """One dead letter, decoded."""
        workload, client = await self._queue(request)
        partition, offset = request.match_info["partition"], request.match_info["offset"]
        if not (is_number(partition) and is_number(offset)):
            raise ApiError(400, "No offset", "write .../messages/{partition}/{offset} with numbers")
        letter = await read_one(client, workload.dlq_topic(), int(partition), int(offset))
        choice = await choose(client, workload, LetterQuery(), [int(partition)] if letter is not None else [])
        if letter is None or not choice.holds(letter):
            raise ApiError(
                404, "No such letter", f"{workload.dlq_topic()}-{partition} has no message at {offset}"
            )
        return json_response(letter_described(letter))

    @described(schemas_dlq.Stats, query=LETTERS, problems=(404, 502))
    async def get_stats(self, request: web.Request) -> web.Response:
        """Counts of letters by code and by hour, with the oldest and the newest."""
        workload, client = await self._queue(request)
        return json_response(await stats(client, workload, query_of(request), SURVEY_TIMEOUT_S))

    @described(Page[schemas_dlq.Merge], problems=(404, 502))
    async def get_merges(self, request: web.Request) -> web.Response:
        """The queue's merges and purges by query that are still on record, with what they did."""
        workload, client = await self._queue(request)
        found = await merges_of(client, workload, await queue_ends(client, workload.dlq_topic()))
        return json_response({"items": [merge.to_json() for _, merge in sorted(found.items())], "next": None})

    @described(answers=EXPORT, query=LETTERS, problems=(404, 502))
    async def export(self, request: web.Request) -> web.StreamResponse:
        """The letters as JSON lines, oldest first in each partition. An aborted answer is incomplete."""
        workload, client = await self._queue(request)
        query = query_of(request)
        topic = workload.dlq_topic()
        spans = bounded(await queue_ends(client, topic), {}, query.partition)
        choice = await choose(client, workload, query, spans)
        offsets = sum(end - start for start, end in spans.values())
        headers = {"Cache-Control": "no-store", "X-Switchyard-Offsets": str(offsets)}
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", **headers})
        answer.enable_chunked_encoding()
        await answer.prepare(request)
        try:
            async for piece in lines(client, topic, choice, spans):
                if piece:
                    await answer.write(piece)
        except ConnectionResetError:
            return answer  # the client is gone
        except Exception as error:  # noqa: BLE001 - after status 200 only an abort reports an error
            log.warning("an export was aborted", topic=topic, error=repr(error))
            if request.transport is not None:
                request.transport.abort()
            return answer
        await answer.write_eof()
        return answer

    # -- changing --------------------------------------------------------------------------------

    @described(
        schemas_dlq.Foreseen,
        answers=STARTED,
        headers=ACTOR,
        body=request_bodies.MergeBody,
        problems=(404, 409, 502),
    )
    async def merge(self, request: web.Request) -> web.Response:
        """Merges letters back to the workload; without `execute`, only forecasts it."""
        workload, client = await self._queue(request)
        body = await read_body(request, request_bodies.MergeBody)
        again = flag_of(body, "again")
        terms = OperationTerms(
            LetterQuery.from_json(body.get("query", {})),
            _whole_number(body, "max_merges", workload.spec.dlq.max_merges),
            again,
        )
        rate = body.get("rate", DEFAULT_RATE)
        if isinstance(rate, bool) or not isinstance(rate, int | float):
            raise BadQuery("rate: must be a number of letters a second")
        wanted = _ranges(body)
        resume = flag_of(body, "resume")
        if not flag_of(body, "execute"):
            return json_response(await foresee(client, workload, terms, wanted, SURVEY_TIMEOUT_S))
        operation = _operation(body, "merge")
        spans = await self._spans(client, workload, terms, None if resume else wanted, operation)

        async def work(report_progress: ReportProgress) -> JsonObject:
            merger = Merger(
                client, workload, operation, rate=rate, report=lambda state: report_progress(state.to_json())
            )
            done = await merger.run(None if resume else terms, spans)
            return done.to_json()

        Merger(client, workload, operation, rate=rate)  # raises BadQuery before the operation starts
        return self._start_operation(request, operation, "merge", workload, work)

    @described(
        (schemas_dlq.ForeseenPurge, schemas_dlq.Foreseen),
        answers=STARTED,
        headers=ACTOR,
        body=request_bodies.PurgeBody,
        problems=(404, 409, 502),
    )
    async def purge(self, request: web.Request) -> web.Response:
        """Deletes letters before a bound, or purges those of a `query`; without `execute`, only forecasts."""
        workload, client = await self._queue(request)
        body = await read_body(request, request_bodies.PurgeBody)
        ranges = _ranges(body)
        resume = flag_of(body, "resume")
        if resume or "query" in body:
            return await self._purge_chosen(request, body, workload, client, None if resume else ranges)
        if flag_of(body, "execute"):
            if not ranges:
                raise BadQuery("ranges: a purge needs the bounds from its dry run")

            async def work(_: object) -> JsonObject:
                firsts = await purge(client, workload, ranges)
                return {"partitions": {str(p): {"first": first} for p, first in firsts.items()}}

            return self._start_operation(request, f"purge-{uuid.uuid4().hex[:12]}", "purge", workload, work)
        partitions = body.get("partitions", [])
        if not isinstance(partitions, list) or not all(type(p) is int for p in partitions):
            raise BadQuery("partitions: must be a list of numbers")
        return json_response(
            await foresee_purge(
                client, workload, partitions=partitions,
                before_ms=None if body.get("before") is None else when_of(body, "before"),
                before_offsets={p: end for p, (_, end) in ranges.items()},
            )
        )  # fmt: skip

    async def _purge_chosen(
        self, request: web.Request, body: JsonMapping, workload: Workload, client: ClusterClient,
        wanted: dict[int, Span] | None,
    ) -> web.Response:  # fmt: skip
        if "before" in body or "partitions" in body:
            raise BadQuery("before, partitions: not with a query; write until_ms and partition into it")
        terms = OperationTerms(LetterQuery.from_json(body.get("query", {})), purge=True)
        if not flag_of(body, "execute"):
            return json_response(await foresee(client, workload, terms, wanted or {}, SURVEY_TIMEOUT_S))
        operation = _operation(body, "purge")
        spans = await self._spans(client, workload, terms, wanted, operation)

        async def work(report_progress: ReportProgress) -> JsonObject:
            run_terms = None if spans is None else terms
            return await purge_chosen(
                client, workload, operation, run_terms, spans, lambda state: report_progress(state.to_json())
            )

        return self._start_operation(request, operation, "purge", workload, work)

    @staticmethod
    async def _spans(
        client: ClusterClient,
        workload: Workload,
        terms: OperationTerms,
        wanted: dict[int, Span] | None,
        operation: str,
    ) -> dict[int, Span] | None:
        """The bounds of a new operation; None: continue the operation that is on record."""
        ends = await queue_ends(client, workload.dlq_topic())
        known = (await merges_of(client, workload, ends)).get(operation)
        if known is not None and known.terms.kind != terms.kind:
            raise ApiError(409, "Another kind", f"{operation} is a {known.terms.kind}; resume it as one")
        if wanted is not None:
            return bounded(ends, wanted, terms.query.partition)
        if known is None:
            detail = f"no {terms.kind} {operation} of {workload.key} is on record; GET .../merges lists them"
            raise ApiError(404, f"No such {terms.kind}", detail)
        return None

    def _start_operation(
        self, request: web.Request, operation: str, kind: str, workload: Workload, work: Work
    ) -> web.Response:
        if self._api.runtime.draining:
            raise ApiError(503, "Stopping", "this worker is stopping; send the request to another worker")
        if workload.key in self._api.runtime.control.view.moves:
            raise ApiError(
                409, "Being moved", f"{workload.key} is moving to another cluster; try again after the move"
            )
        op = self._api.operations.start(operation, kind, workload.key, actor_of(request), work)
        return json_response(op.to_json(), 202, {"Location": f"/api/v1/operations/{op.id}"})

    async def _queue(self, request: web.Request) -> tuple[Workload, ClusterClient]:
        workload = self._api.workload_of(request)
        return workload, (await self._api.cluster_of(workload)).client


def query_of(request: web.Request) -> LetterQuery:
    """The letter query in a request's query string. Raises BadQuery."""
    parameters, at_ms = request.query, now_ms()
    numbers = [*parameters.getall("partition", []), *parameters.getall("attempt_min", [])]
    if wrong := [text for text in numbers if not is_number(text)]:
        raise BadQuery(f"{wrong[0][:40]!r} is not a number")
    since, until, attempt = parameters.get("since"), parameters.get("until"), parameters.get("attempt_min")
    return LetterQuery(
        reason=parameters.get("reason"),
        code=tuple(parameters.getall("code", [])),
        since_ms=None if since is None else parse_when(since, at_ms),
        until_ms=None if until is None else parse_when(until, at_ms),
        key=parameters.get("key"),
        attempt_min=None if attempt is None else int(attempt),
        partition=tuple(int(text) for text in parameters.getall("partition", [])),
    )


def _operation(body: JsonMapping, kind: str) -> str:
    name = body.get("operation", f"{kind}-{uuid.uuid4().hex[:12]}")
    if not isinstance(name, str):
        raise BadQuery("operation: must be text")
    return check_operation(name)


def _whole_number(body: JsonMapping, name: str, default: int) -> int:
    value = body.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadQuery(f"{name}: must be a whole number")
    return value


def _ranges(body: JsonMapping) -> dict[int, Span]:
    ranges = body.get("ranges", {})
    found: dict[int, Span] = {}
    for partition, span in ranges.items() if isinstance(ranges, dict) else [("", None)]:
        bounds = span if isinstance(span, dict) else {"start": -1}
        check_fields(bounds, request_bodies.Span, "ranges: ")
        start, end = bounds.get("start", 0), bounds.get("end", 2**62)
        if not is_number(partition) or not all(type(n) is int and 0 <= n < 2**63 for n in (start, end)):
            raise BadQuery('ranges: write {"0": {"start": 100, "end": 200}}')
        found[int(partition)] = (int(start), int(end))
    return found
