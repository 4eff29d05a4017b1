"""A look into a dead letter queue: its size, and its newest messages with the reasons why they are there.

Letters are untrusted, so the view is bounded. Keys and values are shown as text if they are UTF-8, else as
base64, at most `MAX_SHOWN_BYTES` of each.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
from itertools import accumulate

from aiokafka import AIOKafkaConsumer, TopicPartition

from app.dispatch.definition import Workload
from app.dispatch.dlq.letter import DeadLetter, origin, read_letter
from app.dispatch.dlq.operation_history import choose
from app.dispatch.dlq.query import LetterQuery
from app.dispatch.dlq.rules import LetterChoice
from app.dispatch.model import retry_headers as names
from app.dispatch.model.retry_headers import MERGES
from app.kafka.client.aiokafka_types import ClientOptions
from app.kafka.client.cluster import EARLIEST, LATEST, ClusterClient
from app.kafka.client.consumer_shutdown import stop_consumer
from app.kernel.json_types import JsonObject
from app.web.http.responses import ApiError, is_number

MAX_SHOWN_BYTES = 4096
MAX_SHOWN_HEADERS = 50
READ_MS = 1_000  # wait for a record
LETTER_READ_TIMEOUT_S = 10.0  # for one reading of all partitions
SEARCH_WINDOW = 2_000  # letters of each partition that are read before the results are sorted
LETTER_SEARCH_TIMEOUT_S = 5.0
FETCH_BYTES = 1024 * 1024  # a response; Kafka still sends a larger record, alone


async def sizes(client: ClusterClient, workload: Workload) -> JsonObject:
    """Messages in each partition's log, also those purged by query but not deleted yet. No topic: empty."""
    topic = workload.dlq_topic()
    count = await client.partitions(topic) or 0
    wanted = [(topic, partition) for partition in range(count)]
    begins = await client.offsets(wanted, EARLIEST)
    ends = await client.offsets(wanted, LATEST)
    parts = [
        {"partition": p, "start": begins.get((topic, p)), "end": ends.get((topic, p))} for _, p in wanted
    ]
    known = [ends[at] - begins[at] for at in wanted if at in begins and at in ends]
    return {
        "topic": topic,
        "enabled": workload.spec.dlq.enabled,
        "exists": count > 0,
        "partitions": parts,
        "messages": sum(known) if len(known) == len(parts) else None,
    }


async def newest(
    client: ClusterClient, workload: Workload, limit: int, cursor: str, query: LetterQuery | None = None
) -> JsonObject:
    """The newest messages before `cursor` ("partition:end,...") that match `query`, and the next cursor.

    A search ends after `LETTER_SEARCH_TIMEOUT_S`, so a page may be short though there is a next one. Raises
    ApiError for a cursor of another origin; KafkaError, TimeoutError.
    """
    query = query or LetterQuery()
    state = await sizes(client, workload)
    choice = await choose(client, workload, query, [p["partition"] for p in state["partitions"]])
    partitions = [p for p in state["partitions"] if not query.partition or p["partition"] in query.partition]
    begins = {p["partition"]: p["start"] or 0 for p in partitions}
    ends = {p["partition"]: p["end"] or 0 for p in partitions}
    ends |= _read_cursor(cursor, ends)
    window = limit if choice.everything else max(limit, SEARCH_WINDOW)
    items: list[JsonObject] = []
    until_s = asyncio.get_running_loop().time() + LETTER_SEARCH_TIMEOUT_S
    while any(ends[p] > begins[p] for p in ends):
        wanted = {p: (max(begins[p], ends[p] - window), ends[p]) for p in begins if ends[p] > begins[p]}
        async with asyncio.timeout(LETTER_READ_TIMEOUT_S):
            found = await _read(client.spec.aiokafka_options(), state["topic"], wanted, choice)
        starts = {p: start for p, (start, _) in wanted.items()}
        shown, ends = newest_first(found, starts, ends, limit - len(items))
        items += shown
        if choice.everything or len(items) >= limit or asyncio.get_running_loop().time() > until_s:
            break
    more = any(ends[p] > begins[p] for p in ends)
    next_cursor = ",".join(f"{p}:{end}" for p, end in sorted(ends.items())) if more else None
    return {"topic": state["topic"], "items": items, "next": next_cursor}


async def _read(
    options: ClientOptions, topic: str, wanted: dict[int, tuple[int, int]], choice: LetterChoice
) -> dict[int, list[JsonObject]]:
    """Each partition's records in [start, end), as shown; frees the rest of their bytes at once."""
    found: dict[int, list[JsonObject]] = {}
    consumer = AIOKafkaConsumer(
        enable_auto_commit=False,
        fetch_max_bytes=FETCH_BYTES,
        max_partition_fetch_bytes=FETCH_BYTES,
        **options,
    )
    await consumer.start()
    try:
        # One partition after the other, so that only one response is in memory.
        for number, (start, end) in wanted.items():
            part = TopicPartition(topic, number)
            consumer.assign([part])
            consumer.seek(part, start)
            at = start
            while at < end:
                # One record at a time: a response of large letters may decompress to gigabytes.
                batch = (await consumer.getmany(part, timeout_ms=READ_MS, max_records=1)).get(part)
                if not batch:
                    # Compaction, transaction markers or a slow broker. The queue must not look empty, so this
                    # reads again until the timeout.
                    at = await consumer.position(part)
                    continue
                letters = [read_letter(record) for record in batch if record.offset < end]
                found.setdefault(number, []).extend(
                    _shown(letter) for letter in letters if choice.everything or choice.holds(letter)
                )
                at = batch[-1].offset + 1
    finally:
        await stop_consumer(consumer)
    return found


def newest_first(
    found: dict[int, list[JsonObject]], starts: dict[int, int], ends: dict[int, int], limit: int
) -> tuple[list[JsonObject], dict[int, int]]:
    """At most `limit` messages of all partitions, the newest first, and where the next page ends.

    Args:
        found: The messages that were read of each partition, by offset.
        starts, ends: The offsets [start, end) that were read; a partition without a start was not read.

    Timestamps do not always grow with the offsets. So each partition is shown from its end backwards,
    whatever the timestamps; then no page leaves a message out.
    """
    order = [
        # The least timestamp from here to the partition's end; it never grows backwards.
        (-least, message["partition"], -message["offset"], message)
        for messages in found.values()
        for least, message in zip(
            accumulate((m["at_ms"] for m in reversed(messages)), min), reversed(messages), strict=True
        )
    ]
    order.sort(key=lambda entry: entry[:3])
    shown = [message for *_, message in order[:limit]]
    next_ends = dict(ends)
    for partition, start in starts.items():
        offsets = [m["offset"] for m in found.get(partition, [])]
        shown_offsets = {m["offset"] for m in shown if m["partition"] == partition}
        unshown = [offset for offset in offsets if offset not in shown_offsets]
        next_ends[partition] = max(unshown) + 1 if unshown else start
    return shown, next_ends


def _read_cursor(cursor: str, ends: dict[int, int]) -> dict[int, int]:
    """Where each partition's page ends; a cursor of a DLQ that was recreated may name more than there is."""
    found: dict[int, int] = {}
    for part in cursor.split(",") if cursor else []:
        partition, _, end = part.partition(":")
        if not (is_number(partition) and is_number(end) and int(partition) in ends):
            raise ApiError(400, "Bad cursor", "take the cursor from `next` of the page before")
        found[int(partition)] = min(int(end), ends[int(partition)])
    return found


def _shown(letter: DeadLetter) -> JsonObject:
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "at_ms": letter.timestamp_ms,
        "reason": letter.header_text(names.REASON),
        "code": letter.header_text(names.CODE),
        "attempt": letter.header_text(names.ATTEMPT),
        "merges": letter.header_text(MERGES),
        "origin": origin(letter),
        "key": readable(letter.key),
        "value": readable(letter.value),
        "left_out_bytes": letter.left_out_bytes,
        "left_out_key_bytes": letter.left_out_key_bytes,
        "headers": [
            [name[:200], readable(value)]
            for name, value in letter.headers[:MAX_SHOWN_HEADERS]
            if not name.startswith(names.PREFIX)
        ],
    }


def readable(data: bytes | None) -> JsonObject | None:
    """{"text"} or {"base64"}, cut to `MAX_SHOWN_BYTES`, with the full size."""
    if data is None:
        return None
    piece = data[:MAX_SHOWN_BYTES]
    try:
        # The cut may split a character, which does not make the data invalid.
        shown, _ = codecs.utf_8_decode(piece, "strict", len(piece) == len(data))
        return {"text": shown, "bytes": len(data)}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(piece).decode(), "bytes": len(data)}
