"""Reads back what is remembered of a queue's merges and purges (`operation_progress`) from its cluster's
groups.

An answer that is not certain is an error and never "nothing": a merge that is forgotten is done twice.
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
GROUPS_AT_ONCE = 16  # groups asked for
KEPT_MS = 10 * 365 * 86_400_000  # what was purged must not come back while its letters may be in a log


async def merges_of(
    client: ClusterClient, workload: Workload, partitions: Collection[int]
) -> dict[str, OperationProgress]:
    """Every remembered merge and purge by query of the workload's queue, by its operation.

    Raises:
        ClusterUnreachable: some broker did not answer, or does not know yet.
    """
    prefix = f"{stem(workload)}."
    names = sorted(name for name in await _groups(client) if name.startswith(prefix))
    if len(names) > MAX_REMEMBERED:
        log.warning(
            "more merges and purges are remembered than are read: letters of the others may be shown again",
            topic=workload.dlq_topic(), remembered=len(names), read=MAX_REMEMBERED,
        )  # fmt: skip
        names = names[:MAX_REMEMBERED]
    topic = workload.dlq_topic()
    found: list[OperationProgress | None] = []
    for at in range(0, len(names), GROUPS_AT_ONCE):
        some = names[at : at + GROUPS_AT_ONCE]
        asked = [_merge(client, name, topic, partitions, name.removeprefix(prefix)) for name in some]
        found += await asyncio.gather(*asked)
    return {merge.operation: merge for merge in found if merge is not None}


async def choose(
    client: ClusterClient, workload: Workload, query: LetterQuery, partitions: Collection[int]
) -> LetterChoice:
    """The letters for which `query` holds and that were not purged. Raises ClusterUnreachable."""
    if not partitions:
        return LetterChoice(query)
    known = await merges_of(client, workload, partitions)
    return LetterChoice(query, [merge.past() for merge in known.values() if merge.terms.purge])


async def keep(client: ClusterClient, workload: Workload, merge: OperationProgress) -> None:
    """Lets what has ended be remembered for `KEPT_MS`, instead of the time that the broker keeps offsets.

    A plain commit may name its own time (versions 2 and 3), one inside a transaction may not: the same again.

    Raises:
        ClusterUnreachable: the coordinator does not take it.
    """
    if merge.parts:
        group = _group(workload, merge.operation)
        parts = [(n, part.next_offset, pack(merge.terms, part)) for n, part in merge.parts.items()]
        request = OffsetCommitRequest(group, -1, "", KEPT_MS, [(workload.dlq_topic(), parts)])
        await _coordinated(client, group, request, len(parts))


async def forget(client: ClusterClient, workload: Workload, operations: Iterable[str]) -> None:
    """Lets go of operations whose letters are no more; what is not let go of now is at the next purge."""
    for group in (_group(workload, operation) for operation in operations):
        try:
            node = await client.client.coordinator_lookup(GROUP_COORDINATOR, group)
            await client.send(node, DeleteGroupsRequest([group]))
        except (KafkaError, OSError, TimeoutError) as error:
            log.warning("a purge that is over stays remembered", group=group, error=repr(error))


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
            log.warning("a commit in a merge's group is none of a merge", group=group, partition=partition)
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
    """The coordinator's answers of so many partitions, each with its error last, when none has one."""
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
        error = ", ".join(for_code(code).__name__ for code in codes) or "not all partitions were told"
        await asyncio.sleep(COORDINATOR_RETRY_INTERVAL_S)
    raise ClusterUnreachable(f"group {group} in {client.name} cannot be read or written: {error!r}")
