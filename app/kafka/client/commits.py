"""Commits offsets under a group, so that ordinary Kafka tools see a workload's lag, and reads who is in one.

As a simple consumer (generation -1, no member): Kafka accepts it while the group has no live members of
an ordinary consumer. Fencing is Switchyard's own (kernel.fencing, kernel.lease).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, for_code
from aiokafka.protocol.admin import ListGroupsRequest
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kafka.client.group_members import GROUP_NOT_FOUND, GroupMembers, group_members
from app.kafka.client.permissions import GROUP_NOT_AUTHORISED, NOT_AUTHORISED, allow, lacks

TopicAndPartition = tuple[str, int]  # topic, partition

GROUP_COORDINATOR = 0
MOVED = {14, 15, 16}  # loading, not available, not the coordinator (any more)
HAS_MEMBERS = {22, 25, 27}  # illegal generation, unknown member, rebalance in progress
TRIES = 20
COMMIT_RETRY_INTERVAL_S = 0.25
CONNECTION = "commit"
LIVE = "has live members"  # of the reason for what is refused beside them
CONSUMERS = {"consumer", ""}  # protocols; "": nobody ever joined it


class GroupDenied(ClusterUnreachable):
    """The group may not be read; the message says which permission is missing."""


class CommittedPosition(NamedTuple):
    """A committed next offset, with what was written beside it."""

    next_offset: int
    metadata: str


class OffsetCommitter:
    """Commits to and reads from one cluster's groups."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._coordinators: dict[str, int] = {}

    async def _coordinator(self, group: str) -> int:
        if group not in self._coordinators:
            self._coordinators[group] = await self._client.client.coordinator_lookup(GROUP_COORDINATOR, group)
        return self._coordinators[group]

    async def commit(
        self,
        group: str,
        offsets: Mapping[TopicAndPartition, int],
        metadata: Mapping[TopicAndPartition, str] | None = None,
        *,
        tries: int = TRIES,
    ) -> dict[TopicAndPartition, str]:
        """Commits next offsets, in one request; returns what was refused, with the reason and remedy.

        `metadata`: words to be written beside them. `tries`: 1 for who has to look again before another one.

        Raises:
            ClusterUnreachable: the group's coordinator does not answer.
        """
        words = metadata or {}
        topics: dict[str, list[tuple[int, int, str]]] = {}
        for (topic, partition), next_offset in offsets.items():
            beside = words.get((topic, partition), "")
            topics.setdefault(topic, []).append((partition, next_offset, beside))
        error: object = None
        for _ in range(tries):
            try:
                node = await self._coordinator(group)
                request = OffsetCommitRequest(group, -1, "", -1, list(topics.items()))
                response = await self._client.send(node, request, CONNECTION)
            except GroupAuthorizationFailedError:
                return dict.fromkeys(offsets, self._denied(group))
            except (KafkaError, OSError, TimeoutError) as failure:
                error = failure
                self._coordinators.pop(group, None)
                await asyncio.sleep(COMMIT_RETRY_INTERVAL_S)
                continue
            codes = {
                (topic, partition): code
                for topic, partitions in response.topics
                for partition, code in partitions
            }
            if any(code in MOVED for code in codes.values()):
                error = "its coordinator is moving"
                self._coordinators.pop(group, None)
                await asyncio.sleep(COMMIT_RETRY_INTERVAL_S)
                continue
            return {at: self._why(group, at, code) for at, code in codes.items() if code}
        raise ClusterUnreachable(f"group {group} in {self._client.name} takes no commit: {error}")

    async def committed(
        self, group: str, wanted: Iterable[TopicAndPartition]
    ) -> dict[TopicAndPartition, int | None]:
        """The committed next offset of each (topic, partition); None when there is none.

        Raises:
            GroupDenied: it may not be read. ClusterUnreachable: the group's coordinator does not answer.
        """
        topics: dict[str, list[int]] = {}
        for topic, partition in wanted:
            topics.setdefault(topic, []).append(partition)
        return {
            at: position.next_offset if position.next_offset >= 0 else None
            for at, position in (await self._positions(group, list(topics.items()))).items()
        }

    async def positions(self, group: str, tries: int = TRIES) -> dict[TopicAndPartition, CommittedPosition]:
        """All that the group has committed; it is asked so often.

        Raises:
            ClusterUnreachable: the group's coordinator does not answer.
        """
        found = await self._positions(group, None, tries)
        return {at: position for at, position in found.items() if position.next_offset >= 0}

    async def _positions(
        self, group: str, topics: list[tuple[str, list[int]]] | None, tries: int = TRIES
    ) -> dict[TopicAndPartition, CommittedPosition]:
        error: object = None
        for _ in range(tries):
            try:
                node = await self._coordinator(group)
                response = await self._client.send(node, OffsetFetchRequest(group, topics), CONNECTION)
            except GroupAuthorizationFailedError as denied:
                raise GroupDenied(self._denied(group)) from denied
            except (KafkaError, OSError, TimeoutError) as failure:
                error = failure
                self._coordinators.pop(group, None)
                await asyncio.sleep(COMMIT_RETRY_INTERVAL_S)
                continue
            found: dict[TopicAndPartition, CommittedPosition] = {}
            codes = {getattr(response, "error_code", 0)}
            for topic, partitions in response.topics:
                for partition, offset, metadata, code in partitions:
                    codes.add(code)
                    found[topic, partition] = CommittedPosition(offset, metadata or "")
            bad = {code for code in codes if code}
            if not bad:
                return found
            if GROUP_NOT_AUTHORISED in bad:
                raise GroupDenied(self._denied(group))
            error = ", ".join(for_code(code).__name__ for code in bad)
            self._coordinators.pop(group, None)
            await asyncio.sleep(COMMIT_RETRY_INTERVAL_S)
        raise ClusterUnreachable(f"group {group} in {self._client.name} cannot be read: {error}")

    def _denied(self, group: str) -> str:
        spec = self._client.spec
        return f"{lacks(spec, 'group', group, 'Read')}; {allow(spec, 'group', group, 'Read', 'Describe')}"

    def _why(self, group: str, at: TopicAndPartition, code: int) -> str:
        name, spec = for_code(code).__name__, self._client.spec
        if code == GROUP_NOT_AUTHORISED:
            return self._denied(group)
        if code == NOT_AUTHORISED:
            return f"{lacks(spec, 'topic', at[0], 'Read')}; {allow(spec, 'topic', at[0], 'Read')}"
        if code == GROUP_NOT_FOUND:  # an ordinary group is made by its first commit
            return (
                f"{name}: group {group} is no group of consumers there (a share group, it may be): "
                "give the workload a group of its own"
            )
        if code in HAS_MEMBERS:
            return (
                f"{name}: group {group} {LIVE} of an ordinary consumer; "
                "stop them, or give the workload a group of its own"
            )
        return name

    async def members(self, group: str) -> GroupMembers:
        """Who is in the group now.

        Raises:
            GroupDenied: it may not be described. ClusterUnreachable: its coordinator does not answer.
        """
        error: object = None
        for _ in range(TRIES):
            try:
                node = await self._coordinator(group)
                return await group_members(self._client, node, CONNECTION, group)
            except GroupAuthorizationFailedError as denied:
                raise GroupDenied(self._denied(group)) from denied
            except (KafkaError, OSError, TimeoutError) as failure:
                error = failure
            self._coordinators.pop(group, None)
            await asyncio.sleep(COMMIT_RETRY_INTERVAL_S)
        raise ClusterUnreachable(f"group {group} in {self._client.name} cannot be described: {error!r}")

    async def groups(self, *, every_broker: bool = False) -> list[str]:
        """All groups of consumers. Those of a broker that does not answer are left out, unless `every_broker`
        has to.

        Raises:
            ClusterUnreachable: no broker answers, or one does not that has to.
        """
        found: set[str] = set()
        error: object = "it has no live broker"
        answered, failed = False, False
        for broker in (await self._client.metadata([])).brokers:
            try:
                response = await self._client.send(broker[0], ListGroupsRequest(), CONNECTION)
            except (KafkaError, OSError, TimeoutError) as failure:
                error, failed = failure, True
                continue
            if response.error_code:
                error, failed = for_code(response.error_code).__name__, True
                continue
            answered = True
            found.update(group for group, protocol in response.groups if protocol in CONSUMERS)
        if not answered or (every_broker and failed):
            raise ClusterUnreachable(f"the groups of {self._client.name} cannot be listed: {error}")
        return sorted(found)
