"""Commits offsets, so that Kafka's own tools show a workload's lag; reads commits and group members.

Commits are those of a simple consumer (generation -1, no member). Kafka accepts them while the group has
no live members. Switchyard does its own fencing (`kernel.fencing`, `kernel.lease`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, for_code
from aiokafka.protocol.admin import ListGroupsRequest
from aiokafka.protocol.commit import OffsetCommitRequest, OffsetFetchRequest

from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kafka.client.group_members import GROUP_NOT_FOUND, GroupMembers, group_members
from app.kafka.client.permissions import GROUP_NOT_AUTHORISED, NOT_AUTHORISED, allow, lacks

T = TypeVar("T")
TopicAndPartition = tuple[str, int]  # topic, partition

GROUP_COORDINATOR = 0
MOVED = {14, 15, 16}  # coordinator loading, not available, moved
HAS_MEMBERS = {22, 25, 27}  # illegal generation, unknown member, rebalance in progress
TRIES = 20
COMMIT_RETRY_INTERVAL_S = 0.25
CONNECTION = "commit"
LIVE = "has live members"  # part of the reason of a refused commit
CONSUMERS = {"consumer", ""}  # protocol types; "": no member ever joined


class GroupDenied(ClusterUnreachable):
    """The group may not be read; the message names the missing permission."""


class CommittedPosition(NamedTuple):
    next_offset: int
    metadata: str


class OffsetCommitter:
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
        """Commits next offsets in one request; returns the refused ones, with reason and remedy. `metadata`:
        texts to store with the offsets. `tries`: the number of attempts. Raises ClusterUnreachable: the
        group's coordinator does not answer."""
        topics: dict[str, list[tuple[int, int, str]]] = {}
        for (topic, partition), next_offset in offsets.items():
            text = (metadata or {}).get((topic, partition), "")
            topics.setdefault(topic, []).append((partition, next_offset, text))

        async def send(node: int) -> dict[TopicAndPartition, int]:
            request = OffsetCommitRequest(group, -1, "", -1, list(topics.items()))
            response = await self._client.send(node, request, CONNECTION)
            codes = {
                (topic, partition): code
                for topic, partitions in response.topics
                for partition, code in partitions
            }
            if moved := MOVED.intersection(codes.values()):
                raise for_code(min(moved))
            return codes

        try:
            codes = await self._from_coordinator(group, send, "takes no commit", tries)
        except GroupDenied as denied:
            return dict.fromkeys(offsets, str(denied))
        return {at: self._why(group, at, code) for at, code in codes.items() if code}

    async def committed(
        self, group: str, wanted: Iterable[TopicAndPartition]
    ) -> dict[TopicAndPartition, int | None]:
        """The committed next offset of each (topic, partition); None if there is none. Raises GroupDenied:
        the group may not be read. Raises ClusterUnreachable: the group's coordinator does not answer."""
        topics: dict[str, list[int]] = {}
        for topic, partition in wanted:
            topics.setdefault(topic, []).append(partition)
        return {
            at: position.next_offset if position.next_offset >= 0 else None
            for at, position in (await self._positions(group, list(topics.items()))).items()
        }

    async def positions(self, group: str, tries: int = TRIES) -> dict[TopicAndPartition, CommittedPosition]:
        """All committed positions of the group, in at most `tries` attempts. Raises GroupDenied: the group
        may not be read. Raises ClusterUnreachable: the group's coordinator does not answer."""
        found = await self._positions(group, None, tries)
        return {at: position for at, position in found.items() if position.next_offset >= 0}

    async def _positions(
        self, group: str, topics: list[tuple[str, list[int]]] | None, tries: int = TRIES
    ) -> dict[TopicAndPartition, CommittedPosition]:
        async def send(node: int) -> dict[TopicAndPartition, CommittedPosition]:
            response = await self._client.send(node, OffsetFetchRequest(group, topics), CONNECTION)
            found: dict[TopicAndPartition, CommittedPosition] = {}
            codes = {getattr(response, "error_code", 0)}
            for topic, partitions in response.topics:
                for partition, offset, metadata, code in partitions:
                    codes.add(code)
                    found[topic, partition] = CommittedPosition(offset, metadata or "")
            if errors := codes - {0}:
                raise for_code(GROUP_NOT_AUTHORISED if GROUP_NOT_AUTHORISED in errors else min(errors))
            return found

        return await self._from_coordinator(group, send, "cannot be read", tries)

    async def _from_coordinator(
        self, group: str, ask: Callable[[int], Awaitable[T]], failure: str, tries: int = TRIES
    ) -> T:
        """The answer of the group's coordinator; finds it again after an error. Raises GroupDenied: the group
        may not be read. Raises ClusterUnreachable: all attempts failed."""
        error: Exception | None = None
        for _ in range(tries):
            try:
                return await ask(await self._coordinator(group))
            except GroupAuthorizationFailedError as denied:
                raise GroupDenied(self._denied(group)) from denied
            except (KafkaError, OSError, TimeoutError) as cause:
                error = cause
            self._coordinators.pop(group, None)
            await asyncio.sleep(COMMIT_RETRY_INTERVAL_S)
        raise ClusterUnreachable(f"group {group} in {self._client.name} {failure}: {error!r}")

    def _denied(self, group: str) -> str:
        spec = self._client.spec
        return f"{lacks(spec, 'group', group, 'Read')}; {allow(spec, 'group', group, 'Read', 'Describe')}"

    def _why(self, group: str, at: TopicAndPartition, code: int) -> str:
        name, spec = for_code(code).__name__, self._client.spec
        if code == GROUP_NOT_AUTHORISED:
            return self._denied(group)
        if code == NOT_AUTHORISED:
            return f"{lacks(spec, 'topic', at[0], 'Read')}; {allow(spec, 'topic', at[0], 'Read')}"
        if code == GROUP_NOT_FOUND:  # a commit would create a missing consumer group
            return (
                f"{name}: group {group} is not a consumer group there, but perhaps a share group; "
                "give the workload a group of its own"
            )
        if code in HAS_MEMBERS:
            return (
                f"{name}: group {group} {LIVE} of an ordinary consumer; "
                "stop them, or give the workload a group of its own"
            )
        return name

    async def members(self, group: str) -> GroupMembers:
        """The present members of the group. Raises GroupDenied: the group may not be described. Raises
        ClusterUnreachable: the group's coordinator does not answer."""
        return await self._from_coordinator(
            group, lambda node: group_members(self._client, node, CONNECTION, group), "cannot be described"
        )

    async def groups(self, *, every_broker: bool = False) -> list[str]:
        """All consumer groups. Groups of a silent broker are missing, unless `every_broker` must answer.
        Raises ClusterUnreachable: no broker answers, or a required one does not."""
        found: set[str] = set()
        error: object = "the cluster has no live broker"
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
