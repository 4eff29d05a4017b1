"""Group members of every protocol are found, with Kafka's own consumers as members."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Boolean,
    CompactArray,
    CompactString,
    Int8,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from app.kafka.client.cluster import ClusterClient
from app.kafka.client.commits import CONNECTION, GROUP_COORDINATOR, OffsetCommitter
from app.kafka.client.group_members import GroupMembers
from tests.kafka.conftest import ENOUGH_S, create
from tests.kafka.java_consumers import consuming


async def seen(committer: OffsetCommitter, group: str) -> GroupMembers:
    async with asyncio.timeout(ENOUGH_S):
        while not (found := await committer.members(group)).has_members:  # noqa: ASYNC110 - the broker's news
            await asyncio.sleep(0.1)
    return found


async def test_members_of_the_consumer_protocol_are_found_and_named(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    """The fault: `config deploy` passed although they consumed, so both processed every message."""
    await create(client, topic_name, 2)
    committer, group = OffsetCommitter(client), f"group-{topic_name}"
    assert await committer.members(group) == GroupMembers()
    await committer.commit(group, {(topic_name, 0): 0})
    assert (await committer.members(group)).words == "", "a group of which only positions are known"
    reader = consuming(bootstrap, topic_name, group, "reader")
    with reader, consuming(bootstrap, topic_name, group, "writer"):
        async with asyncio.timeout(ENOUGH_S):
            while len((found := await seen(committer, group)).clients) < 2:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.1)
        assert found.words == "has 2 members (reader, writer)"
        refused = await committer.commit(group, {(topic_name, 0): 0})
        assert "has live members" in refused[topic_name, 0]


async def test_share_group_is_found_and_takes_no_commit(
    client: ClusterClient, bootstrap: str, topic_name: str
) -> None:
    await create(client, topic_name)
    committer, group = OffsetCommitter(client), f"group-{topic_name}"
    with consuming(bootstrap, topic_name, group, shares=True):
        assert (await seen(committer, group)).words.startswith("is a share group")
        refused = await committer.commit(group, {(topic_name, 0): 0})
        assert "perhaps a share group" in refused[topic_name, 0]


async def test_members_of_the_streams_protocol_are_found(client: ClusterClient, topic_name: str) -> None:
    await create(client, topic_name)
    committer, group = OffsetCommitter(client), f"group-{topic_name}"
    assert await committer.members(group) == GroupMembers()  # waits for a coordinator: new brokers have none
    node = await client.client.coordinator_lookup(GROUP_COORDINATOR, group)
    answer: Any = await client.send(node, StreamsHeartbeat(group, topic_name), CONNECTION)
    assert answer.error_code == 0, answer.error_message
    assert (await seen(committer, group)).words == "has members of a streams group (KIP-1071)"
    refused = await committer.commit(group, {(topic_name, 0): 0})
    assert "has live members" in refused[topic_name, 0]


class StreamsHeartbeatResponse(Response):
    """The fields that the test reads."""

    API_KEY = 88
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32), ("error_code", Int16), ("error_message", CompactString()),
    )  # fmt: skip


class StreamsHeartbeatV0(RequestStruct):
    """StreamsGroupHeartbeat, version 0, of a member that joins with a topology of one source topic."""

    API_KEY = 88
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = StreamsHeartbeatResponse
    SCHEMA = Schema(
        ("group", CompactString()),
        ("member_id", CompactString()),
        ("member_epoch", Int32),
        ("endpoint_epoch", Int32),
        ("instance_id", CompactString()),
        ("rack", CompactString()),
        ("rebalance_timeout_ms", Int32),
        ("has_topology", Int8),
        ("topology_epoch", Int32),
        (
            "subtopologies",
            CompactArray(
                ("id", CompactString()),
                ("source_topics", CompactArray(CompactString())),
                ("source_topic_patterns", CompactArray(CompactString())),
                ("changelogs", CompactArray(Int8)),
                ("sinks", CompactArray(CompactString())),
                ("repartition_sources", CompactArray(Int8)),
                ("copartition_groups", CompactArray(Int8)),
                ("tags", TaggedFields),
            ),
        ),
        ("topology_tags", TaggedFields),
        ("active", CompactArray(Int8)),
        ("standby", CompactArray(Int8)),
        ("warm_up", CompactArray(Int8)),
        ("process_id", CompactString()),
        ("has_endpoint", Int8),
        ("client_tags", CompactArray(Int8)),
        ("offsets", CompactArray(Int8)),
        ("end_offsets", CompactArray(Int8)),
        ("shuts_down", Boolean),
        ("tags", TaggedFields),
    )


class StreamsHeartbeat(Request[StreamsHeartbeatV0]):
    """See `StreamsHeartbeatV0`."""

    API_KEY = 88

    def __init__(self, group: str, topic: str) -> None:
        self._group, self._topic = group, topic

    def build(self, request_struct_class: type[StreamsHeartbeatV0]) -> StreamsHeartbeatV0:
        return request_struct_class(
            self._group, "member-1", 0, 0, None, None, 60_000, 1, 1,
            [("0", [self._topic], [], [], [], [], [], {})], {}, [], [], [], "process-1", -1, [], None, None,
            False, {},
        )  # fmt: skip
