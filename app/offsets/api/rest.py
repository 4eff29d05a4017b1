"""The REST handlers for offsets across clusters: mapped and explained, committed, found by time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import structlog
from aiohttp import web
from aiokafka.errors import KafkaError

from app.controllog.events import OperatorAct
from app.dispatch.dlq.query import BadQuery, parse_when
from app.kafka.client.cluster import ClusterUnreachable
from app.kernel.clock import now_ms
from app.kernel.json_types import JsonObject
from app.offsets.api import schemas
from app.offsets.api.time_index import at_time_in
from app.offsets.model.offset_map import Barrier
from app.offsets.model.translation import CopiedPartition, LineReading, ResumePosition, SourceReading
from app.offsets.store.tables import NotRead
from app.offsets.sync.group_syncer import outcome_fields
from app.offsets.sync.mapper import JoinedTopics, NotJoined
from app.offsets.sync.regions import Regions
from app.offsets.sync.time_lookup import copies_of
from app.web.http.context import ApiContext
from app.web.http.forwarding import HOP_HEADER, hand_over
from app.web.http.operator_requests import actor_of, flag_of, read_body
from app.web.http.responses import ApiError, errors_as_problems, is_number, json_response, paged
from app.web.http.route_docs import ACTOR, PAGE, TEXT, Page, Param, described, repeated

log = structlog.get_logger(__name__)

MAX_OFFSETS = 500
MAX_NAME_CHARS = 255

FROM = Param("from", TEXT, "the cluster that was read; required")
TO = Param("to", TEXT, "the cluster where reading continues; required")
MAP = (
    FROM,
    TO,
    Param("topic", TEXT, "the topic that was read; for a group, all of its topics if left out"),
    Param("group", TEXT, "a consumer group, whose positions are mapped"),
    Param("offset", repeated({"type": "string", "pattern": "^[0-9]{1,9}:[0-9]{1,18}$"}, MAX_OFFSETS),
          "P:OFFSET, the next offset of a partition of the topic, instead of a group; may be repeated"),
)  # fmt: skip
TIME = (
    Param("topic", TEXT, "the topic; required"),
    Param("time", TEXT, "2h (ago), an ISO 8601 time (UTC without a zone), or milliseconds; required"),
    Param("cluster", TEXT, "only this cluster"),
)

offset_errors_as_problems = errors_as_problems(
    (BadQuery, 400, "Bad request"),
    (NotJoined, 404, "Nothing joins them"),
    (NotRead, 503, "Offset map not read"),
    (ValueError, 409, "Too much"),
    ((ClusterUnreachable, KafkaError, OSError, TimeoutError), 502, "Cluster unreachable"),
)


class OffsetRoutes:
    """The handlers; `api` finds the runtime."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        """All routes."""
        return [
            web.get("/api/v1/offsets/map", offset_errors_as_problems(self.map_offsets)),
            web.get("/api/v1/offsets/at-time", offset_errors_as_problems(self.offsets_at_time)),
            web.get("/api/v1/offsets/sync", offset_errors_as_problems(self.get_offset_syncs)),
            web.post("/api/v1/offsets/sync", offset_errors_as_problems(self.sync_offsets)),
        ]

    @property
    def _regions(self) -> Regions:
        found: Regions | None = self._api.runtime.regions
        if found is None:
            raise ApiError(503, "No offset map", "this worker knows of no regions; ask another worker")
        return found

    def _cluster(self, name: Any, what: str) -> str:
        specs = self._api.runtime.clusters.specs
        if not isinstance(name, str) or not name:
            raise BadQuery(f"{what}: name a cluster; there are {', '.join(sorted(specs))}")
        if name not in specs:
            raise ApiError(404, "No such cluster", f"{what}: there is no cluster {name[:100]!r}; "
                           f"this worker knows {', '.join(sorted(specs))}")  # fmt: skip
        return name

    # -- mapping -----------------------------------------------------------------------------------

    @described(schemas.OffsetMap, query=MAP, problems=(404, 409, 502))
    async def map_offsets(self, request: web.Request) -> web.Response:
        """The position in one cluster where a reader of another continues, explained source by source.

        The positions are a group's, or given by `offset`. Nothing is committed.
        """
        query = request.query
        group, topic, offsets = query.get("group"), query.get("topic"), query.getall("offset", [])
        if bool(group) == bool(offsets):
            raise BadQuery("name the positions: group=NAME, or topic=NAME with offset=P:OFFSET")
        if offsets and not topic:
            raise BadQuery("topic: name the topic of the offsets")
        source, target = self._cluster(query.get("from"), "from"), self._cluster(query.get("to"), "to")
        regions = self._regions
        if group:
            at = await self._positions(_name(group, "group"), source, topic)
        else:
            at = {_name(topic, "topic"): _offsets(offsets)}
        await regions.mapper.read()
        names = await regions.mapper.names()
        found: list[JsonObject] = []
        unmapped: dict[str, str] = {}
        for name, next_offsets in sorted(at.items()):
            try:
                joined = await regions.mapper.join(source, name, target)
            except NotJoined as error:
                if topic:
                    raise
                unmapped[name] = str(error)
                continue
            found += [_topic(one, next_offsets, names) for one in joined]
        known = [asdict(one) for _, one in sorted(regions.tables.regions.items())]
        return json_response(
            {"from": source, "to": target, "group": group, "topics": found, "unmapped": unmapped,
             "regions": known}
        )  # fmt: skip

    async def _positions(self, group: str, cluster: str, topic: str | None) -> dict[str, dict[int, int]]:
        committer = (await self._api.runtime.clusters.get(cluster)).committer
        found: dict[str, dict[int, int]] = {}
        for (name, partition), position in (await committer.positions(group)).items():
            if topic in {None, name}:
                found.setdefault(name, {})[partition] = position.next_offset
        if not found:
            where = f"topic {topic} in {cluster}" if topic else cluster
            raise ApiError(404, "No such group", f"group {group[:100]!r} has no position in {where[:300]}")
        return found

    # -- offset sync -----------------------------------------------------------------------------

    @described(schemas.Synced, headers=ACTOR, body=schemas.SyncBody, problems=(404, 409, 502))
    async def sync_offsets(self, request: web.Request) -> web.Response:
        """Commits a group's mapped positions in another cluster; without `execute` returns the planned
        commits.

        Nothing is committed while the group has members there. No position moves back, unless the group
        itself went back.
        """
        body = await read_body(request, schemas.SyncBody)
        group, execute = _name(body.get("group"), "group"), flag_of(body, "execute")
        topic = None if body.get("topic") is None else _name(body["topic"], "topic")
        source, target = self._cluster(body.get("from"), "from"), self._cluster(body.get("to"), "to")
        if source == target:
            raise BadQuery("to: must be another cluster than from")
        regions = self._regions
        if topic is None:
            await self._positions(group, source, None)  # raises if the group does not exist
        await regions.mapper.read()

        def wanted(name: str) -> tuple[str, ...] | None:
            return None if topic in {None, name} else ()

        outcome = await regions.syncer.sync(
            group, source, target, regions.syncer.views(source, target), wanted=wanted, execute=execute
        )
        done = execute and outcome.state == "synced"
        if done:
            await self._record(group, f"in step from {source} to {target}", actor_of(request))
        answer = {**outcome_fields(outcome), "from": source, "to": target, "execute": execute, "done": done}
        return json_response(answer)

    async def _record(self, group: str, detail: str, actor: str) -> None:
        event = OperatorAct(at_ms=now_ms(), subject=group, action="offsets-sync", detail=detail, actor=actor)
        try:
            await self._api.runtime.control.append(event)
        except Exception as error:  # noqa: BLE001 - the commit succeeded, so the answer must not be an error
            log.error(
                "an operator's act is done, but not in the control log", act=str(event), error=repr(error)
            )

    @described(Page[schemas.GroupKept], query=PAGE, problems=(502,))
    async def get_offset_syncs(self, request: web.Request) -> web.Response:
        """Every group in offset sync, with its last result, from the leader.

        Routes sync groups, and so do workloads that are passive here.
        """
        runtime = self._api.runtime
        leader, regions = runtime.control.view.leader, self._regions
        if not runtime.leader.leads and leader and not request.headers.get(HOP_HEADER):
            return await hand_over(self._api, request, leader)
        rows: list[JsonObject] = []
        for name, kept in sorted(regions.sync.routes.items()):
            route = {"route": name, "workload": None, "from": kept.source, "to": kept.target}
            if kept.error:
                rows.append({**route, "group": None, "state": "no-round", "why": kept.error, "at_ms": None,
                             "good_ms": None})  # fmt: skip
            rows += [
                {**route, "group": group, "state": one.state, "why": one.why, "at_ms": one.at_ms,
                 "good_ms": kept.good_ms.get(group)}
                for group, one in sorted(kept.outcomes.items())
            ]  # fmt: skip
        rows += [
            {"route": None, "workload": key, "from": one.workload.source, "to": one.workload.target,
             "group": one.workload.group, "state": one.state, "why": one.why, "at_ms": one.at_ms,
             "good_ms": one.good_ms}
            for key, one in regions.sync.passive_statuses().items()
        ]  # fmt: skip
        return json_response(paged(rows, request))

    # -- by time -----------------------------------------------------------------------------------

    @described(schemas.AtTime, query=TIME, problems=(404,))
    async def offsets_at_time(self, request: web.Request) -> web.Response:
        """The first offset at or after a time, of a topic and its copies in every cluster.

        The audit answers by the event time of the audit plan if that is not the records' timestamps, or if
        the cluster does not answer.
        """
        query, runtime = request.query, self._api.runtime
        topic = _name(query.get("topic"), "topic")
        if not query.get("time"):
            raise BadQuery("time: name a time, such as 2h (ago), 2026-01-31T12:00 or milliseconds")
        time_ms = parse_when(query["time"], now_ms())
        named = query.get("cluster")
        clusters = [self._cluster(named, "cluster")] if named is not None else sorted(runtime.clusters.specs)
        routes = {name: runtime.catalog.routes.route(name) for name in list(runtime.control.view.routes)}
        names = copies_of(topic, clusters, {name: one for name, one in routes.items() if one is not None})
        topics = [(cluster, name) for cluster in clusters for name in sorted(names[cluster])]
        found = await asyncio.gather(*(at_time_in(self._api, request, *one, time_ms) for one in topics))
        answers = [one for one in found if one is not None]
        if not answers:
            raise ApiError(404, "No such topic", f"topic {topic[:100]!r} is in none of {', '.join(clusters)}")
        return json_response({"topic": topic, "time_ms": time_ms, "topics": answers})


# -- requests and answers --------------------------------------------------------------------------------


def _name(value: Any, what: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_CHARS:
        raise BadQuery(f"{what}: must be a name of 1 to {MAX_NAME_CHARS} characters")
    return value


def _offsets(texts: list[str]) -> dict[int, int]:
    found: dict[int, int] = {}
    for text in texts:
        partition, _, offset = text.partition(":")
        if not is_number(partition) or not is_number(offset) or int(partition) >= 1 << 31:
            raise BadQuery(f"offset: {text[:60]!r} is not P:OFFSET, such as 0:1042")
        if int(partition) in found:
            raise BadQuery(f"offset: partition {partition} is given twice")
        found[int(partition)] = int(offset)
    if len(found) > MAX_OFFSETS:
        raise BadQuery(f"offset: give at most {MAX_OFFSETS}")
    return found


def _topic(one: JoinedTopics, next_offsets: Mapping[int, int], names: Mapping[str, str]) -> JsonObject:
    resumed = one.resume(next_offsets)
    return {
        "topic": one.read.topic, "to_topic": one.to.topic, "road": resumed.relation.value,
        "partitions": [_partition(answer, names) for answer in resumed.answers.values()],
        "elsewhere": [_place(place, names) for place in resumed.not_copied],
    }  # fmt: skip


def _partition(answer: ResumePosition, names: Mapping[str, str]) -> JsonObject:
    return {
        "partition": answer.partition, "next_offset": answer.next_offset,
        "log_start": answer.log.start, "log_end": answer.log.end,
        "least": None if answer.least is None else _place(answer.least, names),
        "again": answer.reread_messages, "why": answer.why,
        "sources": [_source(source, names) for source in answer.sources],
    }  # fmt: skip


def _source(reading: SourceReading, names: Mapping[str, str]) -> JsonObject:
    source = reading.source
    return {
        "cluster": names.get(source.cluster_id, source.cluster_id), "topic": source.topic,
        "partition": source.partition, "readings": [_reading(one) for one in reading.readings],
        "region": reading.region, "route": reading.route, "read_up_to": reading.k,
        "barrier": _barrier(reading.barrier), "next_offset": reading.x,
        "again": reading.reread_messages, "why": reading.why,
    }  # fmt: skip


def _reading(reading: LineReading) -> JsonObject:
    return {
        "partition": reading.partition, "next_offset": reading.next_offset, "region": reading.region,
        "route": reading.route, "barrier": _barrier(reading.barrier), "read_up_to": reading.k,
        "why": reading.why,
    }  # fmt: skip


def _barrier(barrier: Barrier | None) -> JsonObject | None:
    if barrier is None:
        return None
    age_s = round(max(0, now_ms() - barrier.at_ms) / 1000, 1)
    return {"source_end": barrier.source_end, "target_end": barrier.target_end, "at_ms": barrier.at_ms,
            "age_s": age_s}  # fmt: skip


def _place(place: CopiedPartition, names: Mapping[str, str]) -> str:
    return f"{names.get(place.cluster_id, place.cluster_id)}/{place.topic}-{place.partition}"
