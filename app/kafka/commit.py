"""Commits offsets under a workload's group, so that ordinary Kafka tools see its lag.

As a simple consumer (generation -1, no member): Kafka accepts it while the group has no live members of
an ordinary consumer. Fencing is Switchyard's own (core.fencing, core.lease).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from app.kafka.clusters import ClusterClient, ClusterUnreachable

At = tuple[str, int]  # topic, partition

GROUP_COORDINATOR = 0
MOVED = {14, 15, 16}  # loading, not available, not the coordinator (any more)
HAS_MEMBERS = {22, 25, 27}  # illegal generation, unknown member, rebalance in progress
TRIES = 20
RETRY_S = 0.25
CONNECTION = "commit"


class OffsetCommitter:
    """Commits to and reads from one cluster's groups."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._coordinators: dict[str, int] = {}

    async def _coordinator(self, group: str) -> int:
        if group not in self._coordinators:
            self._coordinators[group] = await self._client.client.coordinator_lookup(GROUP_COORDINATOR, group)
        return self._coordinators[group]

    async def commit(self, group: str, offsets: Mapping[At, int]) -> dict[At, str]:
        """Commits next offsets; returns what was refused, with the reason and remedy.

        Raises:
            ClusterUnreachable: the group's coordinator does not answer.
        """
        topics: dict[str, list[tuple[int, int, str]]] = {}
        for (topic, partition), next_offset in offsets.items():
            topics.setdefault(topic, []).append((partition, next_offset, ""))
        error: object = None
        for _ in range(TRIES):
            try:
                node = await self._coordinator(group)
                request = OffsetCommitRequest(group, -1, "", -1, list(topics.items()))
                response = await self._client.send(node, request, CONNECTION)
            except (KafkaError, OSError, TimeoutError) as failure:
                error = failure
                self._coordinators.pop(group, None)
                await asyncio.sleep(RETRY_S)
                continue
            codes = {
                (topic, partition): code
                for topic, partitions in response.topics
                for partition, code in partitions
            }
            if any(code in MOVED for code in codes.values()):
                error = "its coordinator is moving"
                self._coordinators.pop(group, None)
                await asyncio.sleep(RETRY_S)
                continue
            return {at: _why(group, code) for at, code in codes.items() if code}
        raise ClusterUnreachable(f"group {group} in {self._client.name} takes no commit: {error}")

    async def committed(self, group: str, wanted: Iterable[At]) -> dict[At, int | None]:
        """The committed next offset of each (topic, partition); None when there is none.

        Raises:
            ClusterUnreachable: the group's coordinator does not answer.
        """
        topics: dict[str, list[int]] = {}
        for topic, partition in wanted:
            topics.setdefault(topic, []).append(partition)
        error: object = None
        for _ in range(TRIES):
            try:
                node = await self._coordinator(group)
                response = await self._client.send(
                    node, OffsetFetchRequest(group, list(topics.items())), CONNECTION
                )
            except (KafkaError, OSError, TimeoutError) as failure:
                error = failure
                self._coordinators.pop(group, None)
                await asyncio.sleep(RETRY_S)
                continue
            found: dict[At, int | None] = {}
            codes = {getattr(response, "error_code", 0)}
            for topic, partitions in response.topics:
                for partition, offset, _, code in partitions:
                    codes.add(code)
                    found[topic, partition] = offset if offset >= 0 else None
            bad = {code for code in codes if code}
            if not bad:
                return found
            error = ", ".join(for_code(code).__name__ for code in bad)
            self._coordinators.pop(group, None)
            await asyncio.sleep(RETRY_S)
        raise ClusterUnreachable(f"group {group} in {self._client.name} cannot be read: {error}")


def _why(group: str, code: int) -> str:
    name = for_code(code).__name__
    if code in HAS_MEMBERS:
        return (
            f"{name}: group {group} has live members of an ordinary consumer; "
            "stop them, or give the workload a group of its own"
        )
    return name
