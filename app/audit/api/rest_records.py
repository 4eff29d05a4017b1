"""REST: the places of a topic's records of a time, and the records themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
import orjson
import structlog
from aiohttp import web
from aiokafka.errors import KafkaError

from app.archive.topic_archive import ArchiveUnreadable, TopicArchive, open_archive
from app.audit.definition import AuditPlan
from app.audit.pump.counting_spec import open_times, time_of
from app.audit.query.record_search import (
    EventTimeRange,
    FoundRecord,
    RangeReader,
    SearchLimits,
    SearchRange,
    parts_of,
)
from app.dispatch.dlq.letter import whole as all_of
from app.dispatch.dlq.query import BadQuery, parse_when
from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kernel.clock import iso, now_ms
from app.kernel.json_types import JsonObject
from app.offsets.api.rest import MAX_NAME_CHARS, offset_errors_as_problems
from app.offsets.api.time_index import INDEX_PATH, index_of, own_share, wanted_of
from app.web.http.context import ApiContext
from app.web.http.exports import CSV, EXPORT_READER_TIMEOUT_S, NDJSON, csv_lines, write
from app.web.http.responses import ApiError, number
from app.web.http.route_docs import JSON, TEXT, AnswerDoc, Param, described, whole

log = structlog.get_logger(__name__)

MOST_RECORDS, USUAL_RECORDS = 100_000, 1_000
MOST_BYTES = 256 * 1024 * 1024  # read for one answer
MOST_S = 60.0
MOST_READERS = 2  # at once in a worker, because each may keep it busy
COLUMNS = ("partition", "offset", "time", "timestamp_ms", "key", "value", "headers")
TOPIC = Param("topic", TEXT, "the topic; required")
CLUSTER = Param("cluster", TEXT, "the cluster; required")
RECORDS = (
    TOPIC,
    CLUSTER,
    Param(
        "from", TEXT, "event times from this one on: 2h (ago), an ISO 8601 time, or milliseconds; required"
    ),
    Param("to", TEXT, "event times before this one, in the same formats; by default now"),
    Param("limit", whole(1, MOST_RECORDS, USUAL_RECORDS), "the most records to return"),
    Param("format", {"type": "string", "enum": ["ndjson", "csv"]}, "by default as Accept says, or ndjson"),
)
ABOUT = "records; the last line of JSON has `summary`: without it the answer is incomplete"
STREAM = {200: AnswerDoc({NDJSON: TEXT, CSV: TEXT}, ABOUT)}


class AuditRecordRoutes:
    """The handlers; `api` finds the runtime."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api
        self._readers = 0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(INDEX_PATH, offset_errors_as_problems(self.get_index)),
            web.get("/api/v1/audit/records", offset_errors_as_problems(self.get_records), allow_head=False),
        ]

    @described({"type": "object"}, query=(TOPIC, CLUSTER), problems=(409, 502))
    async def get_index(self, request: web.Request) -> web.Response:
        """The places of a topic's windows in its log that this worker holds. Other workers ask for them."""
        wanted = wanted_of(self._api, *_topic_and_cluster(request.query))
        return web.Response(
            body=msgspec.json.encode(await own_share(self._api, wanted)), content_type=JSON,
            headers={"Cache-Control": "no-store"},
        )  # fmt: skip

    @described(answers=STREAM, query=RECORDS, problems=(404, 409, 502))
    async def get_records(self, request: web.Request) -> web.StreamResponse:
        """A topic's records of a time, by the event time of its audit plan, while they are read.

        They come by offset in each partition. `limit` bounds the records; bytes and time are bounded, too.
        Records that retention has deleted come from the cluster's archive, if switchyard.yaml names one
        (`archive`).
        """
        topic, cluster = _topic_and_cluster(request.query)
        times, limit = _times(request.query), number(request, "limit", USUAL_RECORDS, 1, MOST_RECORDS)
        is_csv = _is_csv(request)
        client = await _client(self._api, cluster)
        plan = self._api.runtime.catalog.audits.plan_of(cluster, topic)
        by_value = plan is not None and plan.by_value
        try:
            opened = None if plan is None else await open_times(plan, self._api.runtime.schemas)
            event_time_of = time_of(plan, opened)
        except (ValueError, OSError) as error:
            detail = f"this worker cannot read the times of plan {plan.name if plan else ''}: {error}"
            raise ApiError(409, "Unreadable times", detail) from error
        if self._readers >= MOST_READERS:
            raise ApiError(
                503, "Busy", f"this worker already reads {MOST_READERS} ranges; ask again, or another worker"
            )
        self._readers += 1
        try:
            topic_id = (await client.topic_ids([topic])).get(topic)
            index = None if topic_id is None else await index_of(self._api, request, topic, cluster, topic_id)
            archive, trouble = await _archive(client, topic, topic_id)
            try:
                parts = await parts_of(
                    client, topic, times, index, by_timestamp=not by_value, archive=archive
                )
            except LookupError as error:
                raise ApiError(404, "No such topic", str(error)) from error
            limits = SearchLimits(limit, MOST_BYTES, MOST_S)
            reader = RangeReader(
                client, topic, parts, times, event_time_of, limits, archive, by_timestamp=not by_value
            )
            return await _stream(request, reader, parts, plan, trouble, is_csv=is_csv)
        finally:
            self._readers -= 1


async def _stream(
    request: web.Request,
    reader: RangeReader,
    parts: list[SearchRange],
    plan: AuditPlan | None,
    trouble: str,
    *,
    is_csv: bool,
) -> web.StreamResponse:
    kind = f"{CSV}; charset=utf-8" if is_csv else NDJSON
    answer = web.StreamResponse(headers={"Content-Type": kind, "Cache-Control": "no-store"})
    await answer.prepare(request)
    try:
        if is_csv:
            await write(answer, csv_lines([COLUMNS]))
        async for found in reader.pieces():
            if found:
                await write(answer, _csv(found) if is_csv else _lines(found))
        if not is_csv:
            await write(answer, orjson.dumps({"summary": summary(reader, parts, plan, trouble)}) + b"\n")
        async with asyncio.timeout(EXPORT_READER_TIMEOUT_S):
            await answer.write_eof()
    except ConnectionResetError:
        pass  # the client has gone
    except (KafkaError, ClusterUnreachable, OSError, TimeoutError) as error:
        log.warning("an answer with records breaks off", error=repr(error))
        if request.transport is not None:
            request.transport.abort()  # after a 200, only a broken connection shows the error
    return answer


def summary(
    reader: RangeReader, parts: list[SearchRange], plan: AuditPlan | None, trouble: str = ""
) -> JsonObject:
    """The answer's last line. `trouble`: why the archive was not read, "" if it was or there is none."""
    return {
        "records": reader.found,
        "looked_at": reader.records,
        "complete": not (reader.why or reader.lost or trouble),
        "why": reader.why,
        "gone": reader.lost,
        "archive_trouble": trouble or None,
        "plan": None if plan is None else plan.name,
        "partitions": [
            {"partition": part.partition, "start": part.start, "end": part.end, "by": part.by,
             "next_offset": reader.positions[part.partition], "gone": part.lost,
             "archived": sum(end - start for start, end in part.archived)}
            for part in parts
        ],
    }  # fmt: skip


async def _archive(
    client: ClusterClient, topic: str, topic_id: str | None
) -> tuple[TopicArchive | None, str]:
    """The archived topic, if there is one; and why it cannot be used, "" if it can."""
    folder = client.spec.archive
    if folder is None or topic_id is None:
        return None, ""
    if not topic_id:
        return (
            None,
            f"{client.name} reports no topic ids, by which archive {folder} knows topics; update its brokers",
        )
    try:
        return await open_archive(folder, await client.cluster_id(), topic, topic_id), ""
    except ArchiveUnreadable as error:
        log.warning("an archive cannot be used", error=str(error))
        return None, str(error)


def _row(found: FoundRecord) -> JsonObject:
    record = found.record
    return {
        "partition": found.partition, "offset": record.offset, "time_ms": found.time_ms,
        "time": iso(found.time_ms), "timestamp_ms": record.timestamp, "key": all_of(record.key),
        "value": all_of(record.value),
        "headers": [[name, all_of(value)] for name, value in record.headers],
    }  # fmt: skip


def _lines(found: list[FoundRecord]) -> bytes:
    return b"".join(orjson.dumps(_row(record)) + b"\n" for record in found)


def _csv(found: list[FoundRecord]) -> bytes:
    rows = []
    for record in found:
        row = _row(record)
        headers = orjson.dumps(row["headers"]).decode() if row["headers"] else ""
        rows.append(
            [*(row[column] for column in COLUMNS[:4]), _text(row["key"]), _text(row["value"]), headers]
        )
    return csv_lines(rows)


def _text(value: Mapping[str, str] | None) -> str | None:
    """The value as a query of dead letters takes it."""
    if value is None:
        return None
    return value["text"] if "text" in value else f"base64:{value['base64']}"


# -- the query -----------------------------------------------------------------------------------------


def _topic_and_cluster(query: Mapping[str, str]) -> tuple[str, str]:
    """Topic and cluster. Raises BadQuery."""
    found = []
    for name in ("topic", "cluster"):
        value = query.get(name, "")
        if not 0 < len(value) <= MAX_NAME_CHARS:
            raise BadQuery(f"{name}: must be a name of 1 to {MAX_NAME_CHARS} characters")
        found.append(value)
    return found[0], found[1]


def _times(query: Mapping[str, str]) -> EventTimeRange:
    at_ms = now_ms()
    found = {}
    for name in ("from", "to"):
        text = query.get(name)
        if text is None and name == "from":
            raise BadQuery("from: say since when, such as 2h (ago), 2026-01-31T12:00 or milliseconds")
        try:
            found[name] = at_ms if text is None else parse_when(text, at_ms)
        except BadQuery as error:
            raise BadQuery(f"{name}: {error}") from error
    if found["from"] >= found["to"]:
        raise BadQuery(f"to: {iso(found['to'])} is not after {iso(found['from'])}")
    return EventTimeRange(found["from"], found["to"])


def _is_csv(request: web.Request) -> bool:
    wanted = request.query.get("format")
    if wanted not in (None, "csv", "ndjson"):
        raise ApiError(400, "Bad query", f"format={wanted[:40]!r}: no such format; there are ndjson, csv")
    return wanted == "csv" or (wanted is None and CSV in request.headers.get("Accept", ""))


async def _client(api: ApiContext, cluster: str) -> ClusterClient:
    specs = api.runtime.clusters.specs
    if cluster not in specs:
        raise ApiError(
            404, "No such cluster",
            f"cluster: there is no cluster {cluster[:100]!r}; this worker knows {', '.join(sorted(specs))}",
        )  # fmt: skip
    client: ClusterClient = (await api.runtime.clusters.get(cluster)).client
    return client
