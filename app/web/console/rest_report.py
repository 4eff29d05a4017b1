"""The report over all regions: the REST side of what Spark's job writes into this region's report topic.

Rules
1. The topic is read when somebody asks, and again only when it has grown.
2. A report that is being written is told as not complete, one that another version of the job has written as
   such (`app.controllog.global_report`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiokafka import AIOKafkaConsumer, TopicPartition

from app.controllog.global_report import FORMAT, PARTS, folded
from app.controllog.topics import ControlTopics
from app.kafka.client.cluster import LATEST, ClusterClient, ClusterUnreachable
from app.kafka.client.consumer_shutdown import stop_consumer
from app.kafka.records.record import size_of
from app.offsets.api.rest import offset_errors_as_problems
from app.web.http.responses import ApiError, json_response
from app.web.http.route_docs import described

if TYPE_CHECKING:
    from app.web.console.api import Api

MOST_BYTES = 64 * 1024 * 1024  # of a topic that holds a report; more is something else
REPORT_READ_TIMEOUT_S = 30.0
HOW = "python -m spark report --from-store DIR --topic {topic} --bootstrap HOST:PORT"
ROWS = {"type": "array", "items": {"type": "object"}}
SHAPE = {
    "type": "object",
    "properties": {
        "complete": {"type": "boolean"},
        "generated": {"type": ["string", "null"]},
        **dict.fromkeys(PARTS, ROWS),
    },
    "required": ["complete", "generated", *PARTS],
}


class ReportRoutes:
    """Handlers; `api` finds the runtime."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._read: tuple[int, dict[str, Any] | None] = (-1, None)
        self._reading = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        """Everything there is."""
        return [web.get("/api/v1/report", offset_errors_as_problems(self.get_report))]

    @described(SHAPE, problems=(409, 502))
    async def get_report(self, _: web.Request) -> web.Response:
        """The newest report over all regions: traffic, loss, owners, readiness; as Spark's job has written it
        into this region's report topic.

        Null as `generated`: there is none, or one of another format, and `detail` says how to make one.
        """
        layout, topic = self._api.runtime.catalog.audits.layout, ControlTopics(self._api.region).report.name
        assert layout is not None, "a worker has one"
        client = (await self._api.runtime.clusters.get(layout.control)).client
        async with self._reading:
            end = (await client.offsets([(topic, 0)], LATEST)).get((topic, 0))
            if end is None:
                raise ClusterUnreachable(f"the leader of {topic} in {client.name} does not answer")
            if end != self._read[0]:
                self._read = end, folded(await _values(client, topic, end))
            found = self._read[1]
        how = HOW.format(topic=topic)
        if found is None:
            none: dict[str, Any] = {part: [] for part in PARTS}
            detail = f"Nobody has written one yet: {how}"
            return json_response({"complete": False, "generated": None, "detail": detail, **none})
        if found.get("format") != FORMAT:
            its = "of an older version" if found["format"] is None else f"of format {found['format']}"
            detail = (
                f"The report in {topic} is {its}, and this console reads format {FORMAT}. "
                f"Write it anew with the console's version: {how}"
            )
            return json_response({**found, "detail": detail})
        return json_response(found)


async def _values(client: ClusterClient, topic: str, end: int) -> dict[bytes, bytes]:
    """The newest value of each key below `end`. Raises ApiError, KafkaError, TimeoutError."""
    found: dict[bytes, bytes] = {}
    nbytes = 0
    consumer = AIOKafkaConsumer(enable_auto_commit=False, **client.spec.aiokafka_options())
    await consumer.start()
    await asyncio.sleep(0)  # stopped before its tasks have begun, it would cancel whoever stops it
    try:
        at = TopicPartition(topic, 0)
        consumer.assign([at])
        await consumer.seek_to_beginning(at)
        async with asyncio.timeout(REPORT_READ_TIMEOUT_S):
            while await consumer.position(at) < end:
                for record in (await consumer.getmany(at, timeout_ms=200)).get(at, ()):
                    nbytes += size_of(record)
                    found.pop(record.key or b"", None)
                    if record.value is not None:
                        found[record.key or b""] = record.value
                if nbytes > MOST_BYTES:
                    raise ApiError(
                        409, "Too large", f"{topic} has more than {MOST_BYTES} bytes: a report is shorter"
                    )
    finally:
        await stop_consumer(consumer)
    return found
