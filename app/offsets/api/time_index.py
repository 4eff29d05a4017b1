"""Offsets at a time, from the cluster or from the audit's time index that all workers hold together."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from urllib.parse import urlencode

import msgspec
from aiohttp import web
from aiokafka.errors import KafkaError

from app.audit.jobs.region_query import NotKnown
from app.audit.jobs.report_sender import audit_partition
from app.audit.query.time_index import TimeIndex, share, time_index
from app.audit.query.view import BookShare, WindowQuery, joined
from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kernel.json_types import JsonObject
from app.offsets.sync.time_lookup import at_time
from app.web.http.context import ApiContext
from app.web.http.forwarding import HOP_HEADER

INDEX_PATH = "/api/v1/audit/index"
CLUSTER_ANSWER_TIMEOUT_S = 8.0  # for a cluster to return offsets at a time
_share = msgspec.json.Decoder(BookShare)


def wanted_of(api: ApiContext, topic: str, cluster: str) -> WindowQuery:
    """A query for the topic's windows at its cluster's tier."""
    return WindowQuery(topic, api.runtime.catalog.audits.tier(cluster) or "other", cluster)


async def own_share(api: ApiContext, wanted: WindowQuery) -> BookShare:
    """This worker's part of the index. Raises ValueError: there are too many windows."""
    books = api.runtime.audit_books.books
    next_offsets = {partition: book.next_offset for partition, book in books.items()}
    return await asyncio.to_thread(
        share, next_offsets, [book.collector.copy() for book in books.values()], wanted
    )


async def index_of(
    api: ApiContext, request: web.Request, topic: str, cluster: str, topic_id: str | None
) -> TimeIndex | None:
    """The time index of a topic in a cluster; None: no worker that answered has its audit partition.

    Raises:
        ValueError: There are too many windows.
    """
    path = f"{INDEX_PATH}?{urlencode({'topic': topic, 'cluster': cluster})}"
    shares = [await own_share(api, wanted_of(api, topic, cluster))]
    if not request.headers.get(HOP_HEADER):
        answers = await api.runtime.alerts.auditor.ask(path)
        shares += [_share.decode(one) for one in answers if not isinstance(one, NotKnown)]
    if not any(audit_partition(topic) in one.next_offsets for one in shares):
        return None
    return time_index(joined(shares, audit_partition), topic_id)


async def at_time_in(
    api: ApiContext, request: web.Request, cluster: str, topic: str, time_ms: int
) -> JsonObject | None:
    """A topic's first offsets at or after a time, as `TimeTopic`; None: it does not exist in the cluster. The
    broker answers by the records' timestamps. The audit answers if the audit plan has another event time, or
    the cluster does not answer."""
    answer: JsonObject = {
        "cluster": cluster, "topic": topic, "by": "timestamps", "why": "", "partitions": [], "error": "",
    }  # fmt: skip
    plan, topic_id = api.runtime.catalog.audits.plan_of(cluster, topic), None
    by_value = plan is not None and plan.by_value
    try:
        async with asyncio.timeout(CLUSTER_ANSWER_TIMEOUT_S):
            client: ClusterClient = (await api.runtime.clusters.get(cluster)).client
            found = await at_time(client, topic, time_ms)
            if by_value:
                topic_id = (await client.topic_ids([topic])).get(topic)
    except (ClusterUnreachable, KafkaError, OSError, TimeoutError) as error:
        answer["error"] = str(error) or repr(error)
        found = []
    if found is None:
        return None
    answer["partitions"] = [asdict(at) for at in found]
    if plan is None or not (by_value or answer["error"]):
        return answer
    try:
        index = await index_of(api, request, topic, cluster, topic_id)
    except ValueError as error:
        return {**answer, "why": f"the index of audit plan {plan.name} cannot be used: {error}"}
    if index is None:
        why = f"not by the event time of audit plan {plan.name}, because no worker has its index now"
        return {**answer, "why": why if by_value else ""}
    why = f"the cluster does not answer: {answer['error']}" if answer["error"] else ""
    why = f"by the event time of audit plan {plan.name}" if by_value and not why else why
    rows = _by_index(index, time_ms, answer["partitions"])
    return {**answer, "by": "audit", "why": why, "partitions": rows, "error": "" if rows else answer["error"]}


def _by_index(index: TimeIndex, time_ms: int, known: list[JsonObject]) -> list[JsonObject]:
    logs = {row["partition"]: (row["log_start"], row["log_end"]) for row in known}
    rows = []
    for partition in sorted(index.windows.keys() | logs.keys()):
        start, end = logs.get(partition, (None, None))
        at = index.at(partition, time_ms)
        if at is not None:
            offset, note = at
        elif start is None:
            continue
        else:  # nothing was counted: records may be older than its windows, or not counted yet
            offset, note = start, "before-start" if end > start else "beyond-end"
        if start is not None and offset < start:
            offset, note = start, "before-start"
        rows.append(
            {"partition": partition, "next_offset": offset, "timestamp_ms": None, "log_start": start,
             "log_end": end, "note": note}
        )  # fmt: skip
    return rows
