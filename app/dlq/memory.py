"""Reads back what is remembered of a queue's merges (see `progress`) from the groups of its cluster.

An answer that is not certain is an error and never "nothing": a merge that is forgotten is done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import structlog
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.admin import ListGroupsRequest
from aiokafka.protocol.commit import OffsetFetchRequest

from app.config.definitions import Workload
from app.dlq.progress import Merge, Part, Terms, stem, unpack
from app.kafka.clusters import ClusterClient, ClusterUnreachable

log = structlog.get_logger(__name__)

GROUP_COORDINATOR = 0
TRIES = 20
RETRY_S = 0.25
MAX_REMEMBERED = 1_000  # of one queue; Kafka forgets them after a week


async def merges_of(
    client: ClusterClient, workload: Workload, partitions: Collection[int]
) -> dict[str, Merge]:
    """Every remembered merge of the workload's queue, by its operation.

    Raises:
        ClusterUnreachable: some broker did not answer, or does not know yet.
    """
    prefix = f"{stem(workload)}."
    names = sorted(name for name in await _groups(client) if name.startswith(prefix))
    found: dict[str, Merge] = {}
    for name in names[:MAX_REMEMBERED]:
        merge = await _merge(client, name, workload.dlq_topic(), partitions, name.removeprefix(prefix))
        if merge is not None:
            found[merge.operation] = merge
    return found


async def _merge(
    client: ClusterClient, group: str, topic: str, partitions: Collection[int], operation: str
) -> Merge | None:
    terms: Terms | None = None
    parts: dict[int, Part] = {}
    for partition, next_offset, metadata in await _offsets(client, group, topic, partitions):
        unpacked = unpack(metadata, next_offset) if next_offset >= 0 else None
        if unpacked is not None:
            terms, parts[partition] = unpacked
        elif next_offset >= 0:
            log.warning("a commit in a merge's group is none of a merge", group=group, partition=partition)
    return None if terms is None else Merge(operation, terms, parts)


async def _groups(client: ClusterClient) -> set[str]:
    error: object = None
    for _ in range(TRIES):
        try:
            brokers = [broker[0] for broker in (await client.metadata([])).brokers]
            found: set[str] = set()
            for node in brokers:
                response = await client.send(node, ListGroupsRequest())
                if response.error_code:
                    raise for_code(response.error_code)()
                found.update(name for name, *_ in response.groups)
        except (KafkaError, OSError, TimeoutError) as failure:
            error = failure
            await asyncio.sleep(RETRY_S)
        else:
            return found
    raise ClusterUnreachable(f"the groups of {client.name} cannot be listed: {error!r}")


async def _offsets(
    client: ClusterClient, group: str, topic: str, partitions: Collection[int]
) -> list[tuple[int, int, str]]:
    error: object = None
    for _ in range(TRIES):
        try:
            node = await client.client.coordinator_lookup(GROUP_COORDINATOR, group)
            response: Any = await client.send(node, OffsetFetchRequest(group, [(topic, sorted(partitions))]))
        except (KafkaError, OSError, TimeoutError) as failure:
            error = failure
            await asyncio.sleep(RETRY_S)
            continue
        answers = [answer for _, entries in response.topics for answer in entries]
        codes = {getattr(response, "error_code", 0), *(code for *_, code in answers)} - {0}
        if not codes and len(answers) == len(partitions):
            return [(partition, offset, metadata) for partition, offset, metadata, _ in answers]
        error = ", ".join(for_code(code).__name__ for code in codes) or "not all partitions were told"
        await asyncio.sleep(RETRY_S)
    raise ClusterUnreachable(f"group {group} in {client.name} cannot be read: {error!r}")
