"""Reads the records of a queue's merges and purges (`operation_progress`) from its cluster's consumer groups.

An uncertain answer is an error, never an empty history: a forgotten merge would be done twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Any

import structlog
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.admin import DeleteGroupsRequest, ListGroupsRequest
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from app.dispatch.definition import Workload
from app.dispatch.dlq.operation_progress import (
    OperationProgress,
    OperationTerms,
    PartitionProgress,
    pack,
    stem,
    unpack,
)
from app.dispatch.dlq.query import LetterQuery
from app.dispatch.dlq.rules import LetterChoice
from app.kafka.client.cluster import ClusterClient, ClusterUnreachable

log = structlog.get_logger(__name__)

GROUP_COORDINATOR = 0
TRIES = 20
COORDINATOR_RETRY_INTERVAL_S = 0.25
MAX_REMEMBERED = 1_000  # of one queue; Kafka forgets merges after a week
GROUPS_AT_ONCE = 16
KEPT_MS = 10 * 365 * 86_400_000  # a purge must be remembered for as long as a log may contain its letters


async def merges_of(
    client: ClusterClient, workload: Workload, partitions: Collection[int]
) -> dict[str, OperationProgress]:
    """Every recorded merge and purge by query of the workload's queue, by operation.

    Raises:
        ClusterUnreachable: A broker gave no answer, or no final one.
    """
    prefix = f"{stem(workload)}."
    names = sorted(name for name in await _groups(client) if name.startswith(prefix))
    if len(names) > MAX_REMEMBERED:
        log.warning(
            "a queue has too many recorded merges and purges: the letters of the unread ones count as new",
            topic=workload.dlq_topic(), remembered=len(names), read=MAX_REMEMBERED,
        )  # fmt: skip
        names = names[:MAX_REMEMBERED]
    topic = workload.dlq_topic()
    found: list[OperationProgress | None] = []
    for at in range(0, len(names), GROUPS_AT_ONCE):
        batch = names[at : at + GROUPS_AT_ONCE]
        reads = [_merge(client, name, topic, partitions, name.removeprefix(prefix)) for name in batch]
        found += await asyncio.gather(*reads)
    return {merge.operation: merge for merge in found if merge is not None}


async def choose(
    client: ClusterClient, workload: Workload, query: LetterQuery, partitions: Collection[int]
) -> LetterChoice:
    """The letters for which `query` holds and which no purge took. Raises ClusterUnreachable."""
    if not partitions:
        return LetterChoice(query)
    operations = await merges_of(client, workload, partitions)
    return LetterChoice(query, [merge.past() for merge in operations.values() if merge.terms.purge])


async def keep(client: ClusterClient, workload: Workload, merge: OperationProgress) -> None:
    """Extends the record of an ended operation to `KEPT_MS`, beyond the broker's retention of offsets.

    A commit inside a transaction cannot name a retention. A plain one can (versions 2 and 3), so the same
    offsets are committed again.

    Raises:
        ClusterUnreachable: The coordinator does not accept the commit.
    """
    if merge.parts:
        group = _group(workload, merge.operation)
        parts = [(n, part.next_offset, pack(merge.terms, part)) for n, part in merge.parts.items()]
        request = OffsetCommitRequest(group, -1, "", KEPT_MS, [(workload.dlq_topic(), parts)])
        await _coordinated(client, group, request, len(parts))


async def forget(client: ClusterClient, workload: Workload, operations: Iterable[str]) -> None:
    """Deletes the records of operations whose letters the log has lost; after an error a later purge does."""
    for group in (_group(workload, operation) for operation in operations):
        try:
            node = await client.client.coordinator_lookup(GROUP_COORDINATOR, group)
            await client.send(node, DeleteGroupsRequest([group]))
        except (KafkaError, OSError, TimeoutError) as error:
            log.warning("the record of an expired purge was not deleted", group=group, error=repr(error))


def _group(workload: Workload, operation: str) -> str:
    return f"{stem(workload)}.{operation}"


async def _merge(
    client: ClusterClient, group: str, topic: str, partitions: Collection[int], operation: str
) -> OperationProgress | None:
    terms: OperationTerms | None = None
    parts: dict[int, PartitionProgress] = {}
    for partition, next_offset, metadata in await _offsets(client, group, topic, partitions):
        unpacked = unpack(metadata, next_offset) if next_offset >= 0 else None
        if unpacked is not None:
            terms, parts[partition] = unpacked
        elif next_offset >= 0:
            log.warning("a foreign commit in a merge's group is ignored", group=group, partition=partition)
    return None if terms is None else OperationProgress(operation, terms, parts)


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
            await asyncio.sleep(COORDINATOR_RETRY_INTERVAL_S)
        else:
            return found
    raise ClusterUnreachable(f"the groups of {client.name} cannot be listed: {error!r}")


async def _offsets(
    client: ClusterClient, group: str, topic: str, partitions: Collection[int]
) -> list[tuple[int, int, str]]:
    request = OffsetFetchRequest(group, [(topic, sorted(partitions))])
    answers = await _coordinated(client, group, request, len(partitions))
    return [(partition, offset, metadata) for partition, offset, metadata, _ in answers]


async def _coordinated(
    client: ClusterClient, group: str, request: OffsetFetchRequest | OffsetCommitRequest, partitions: int
) -> list[Any]:
    """The coordinator's answers for this many partitions, each with its error code last; none is an error."""
    error: object = None
    for _ in range(TRIES):
        try:
            node = await client.client.coordinator_lookup(GROUP_COORDINATOR, group)
            response: Any = await client.send(node, request)
        except (KafkaError, OSError, TimeoutError) as failure:
            error = failure
            await asyncio.sleep(COORDINATOR_RETRY_INTERVAL_S)
            continue
        answers = [answer for _, entries in response.topics for answer in entries]
        codes = {getattr(response, "error_code", 0), *(code for *_, code in answers)} - {0}
        if not codes and len(answers) == partitions:
            return answers
        error = ", ".join(for_code(code).__name__ for code in codes) or "the answer lacks partitions"
        await asyncio.sleep(COORDINATOR_RETRY_INTERVAL_S)
    raise ClusterUnreachable(f"group {group} in {client.name} cannot be read or written: {error!r}")
