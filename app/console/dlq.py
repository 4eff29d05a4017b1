"""Looking into a dead letter queue: sizes, and the newest messages with why they are there.

What is shown is untrusted and bounded: keys and values as text when they are UTF-8, else as base64, at most
`MAX_SHOWN_BYTES` of each.
"""

from __future__ import annotations

import base64
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from app.config.definitions import Workload
from app.console.answers import ApiError
from app.core import retry_headers as names
from app.kafka.clusters import EARLIEST, LATEST

MAX_SHOWN_BYTES = 4096
READ_MS = 3_000


async def sizes(cluster: Any, workload: Workload) -> dict[str, Any]:
    """Messages by partition. A DLQ that does not exist yet is empty."""
    topic = workload.dlq_topic()
    count = await cluster.client.partitions(topic) or 0
    wanted = [(topic, partition) for partition in range(count)]
    begins = await cluster.client.offsets(wanted, EARLIEST)
    ends = await cluster.client.offsets(wanted, LATEST)
    parts = [
        {"partition": p, "start": begins.get((topic, p)), "end": ends.get((topic, p))} for _, p in wanted
    ]
    known = [part for part in parts if part["start"] is not None and part["end"] is not None]
    return {
        "topic": topic,
        "enabled": workload.spec.dlq.enabled,
        "exists": count > 0,
        "partitions": parts,
        "messages": sum(part["end"] - part["start"] for part in known) if len(known) == len(parts) else None,
    }


async def newest(cluster: Any, workload: Workload, limit: int, cursor: str) -> dict[str, Any]:
    """The newest messages before `cursor` ("partition:end,..."), newest first, and the next cursor.

    Raises:
        ApiError: the cursor is none of ours.
    """
    state = await sizes(cluster, workload)
    begins = {p["partition"]: p["start"] or 0 for p in state["partitions"]}
    ends = {p["partition"]: p["end"] or 0 for p in state["partitions"]} | _read_cursor(cursor, begins)
    wanted = {p: max(begins[p], ends[p] - limit) for p in begins if ends[p] > begins[p]}
    records: list[Any] = []
    if wanted:
        topic = state["topic"]
        consumer = AIOKafkaConsumer(enable_auto_commit=False, **cluster.client.spec.aiokafka_options())
        await consumer.start()
        try:
            parts = {TopicPartition(topic, p): start for p, start in wanted.items()}
            consumer.assign(list(parts))
            for part, start in parts.items():
                consumer.seek(part, start)
            while parts:
                batches = await consumer.getmany(*parts, timeout_ms=READ_MS)
                if not batches:
                    break
                for part, batch in batches.items():
                    records += [record for record in batch if record.offset < ends[part.partition]]
                    if batch[-1].offset >= ends[part.partition] - 1:
                        del parts[part]
        finally:
            await consumer.stop()
    records.sort(key=lambda record: (record.timestamp, record.partition, record.offset), reverse=True)
    shown = records[:limit]
    for record in shown:
        ends[record.partition] = min(ends[record.partition], record.offset)
    more = any(ends[p] > begins[p] for p in ends) and bool(shown)
    following = ",".join(f"{p}:{end}" for p, end in sorted(ends.items())) if more else None
    return {"topic": state["topic"], "items": [_shown(record) for record in shown], "next": following}


def _read_cursor(cursor: str, known: dict[int, int]) -> dict[int, int]:
    found: dict[int, int] = {}
    for part in cursor.split(",") if cursor else []:
        partition, _, end = part.partition(":")
        if not (partition.isdigit() and end.isdigit() and len(end) < 19 and int(partition) in known):
            raise ApiError(400, "Bad cursor", "take the cursor from `next` of the page before")
        found[int(partition)] = int(end)
    return found


def _shown(record: Any) -> dict[str, Any]:
    headers = dict(record.headers)

    def text(name: str) -> str | None:
        value = headers.get(name)
        return None if value is None else value.decode("utf-8", "replace")

    return {
        "partition": record.partition,
        "offset": record.offset,
        "at_ms": record.timestamp,
        "reason": text(names.REASON),
        "code": text(names.CODE),
        "attempt": text(names.ATTEMPT),
        "origin": {
            "topic": text(names.ORIGIN_TOPIC),
            "partition": text(names.ORIGIN_PARTITION),
            "offset": text(names.ORIGIN_OFFSET),
            "timestamp_ms": text(names.ORIGIN_TIMESTAMP),
        },
        "key": readable(record.key),
        "value": readable(record.value),
        "headers": [[n[:200], readable(v)] for n, v in record.headers if not n.startswith(names.PREFIX)],
    }


def readable(data: bytes | None) -> dict[str, Any] | None:
    """{"text"} or {"base64"}, cut to `MAX_SHOWN_BYTES`, with the whole size."""
    if data is None:
        return None
    piece = data[:MAX_SHOWN_BYTES]
    try:
        # A cut may fall into a character: up to three bytes of it may be missing.
        shown = piece.decode("utf-8") if piece is data else piece.decode("utf-8", "ignore")
        if piece is not data:
            data.decode("utf-8")
        return {"text": shown, "bytes": len(data)}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(piece).decode(), "bytes": len(data)}
