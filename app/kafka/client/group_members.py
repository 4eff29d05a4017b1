"""The members of a consumer group, in any protocol.

    classic (JoinGroup)    -> DescribeGroups
    consumer (KIP-848)     -> ListGroups 5 --> ConsumerGroupDescribe
    streams (KIP-1071)     -> ListGroups 5
    share (KIP-932)        -> ListGroups 5

DescribeGroups reports a group of a newer protocol as missing. Brokers before Kafka 3.8 do not know
ListGroups 5 and have such groups only in previews.

Sources: KIP-848, KIP-932, KIP-1043 (types and states in ListGroups), Apache Kafka's protocol guide.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from aiokafka.errors import GroupAuthorizationFailedError, for_code
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, Int16, Int32, Schema, TaggedFields

from app.kafka.client.cluster import ClusterClient
from app.kafka.client.permissions import GROUP_NOT_AUTHORISED
from app.kafka.client.topic_ids import NUMBERS, TAGS, TEXT, KafkaUuid

CONSUMER, STREAMS, SHARE = "consumer", "streams", "share"
NEWER_TYPES = {CONSUMER: "KIP-848", STREAMS: "KIP-1071", SHARE: "KIP-932"}
DEAD = "dead"  # the state of a missing group, or of one with another protocol
NO_MEMBERS = {"empty", DEAD}  # group states
GROUP_NOT_FOUND = 69
SHOWN_CLIENTS = 3
_TEXTS = CompactArray(TEXT)
_TOPICS = CompactArray(("topic_id", KafkaUuid), ("name", TEXT), ("partitions", NUMBERS), TAGS)


class GroupMembers(NamedTuple):
    """The members of a group.

    Attributes:
        clients: A client id for each member, as far as the broker reports them.
        type_: "" for the classic protocol, otherwise one of `NEWER_TYPES`.
        has_members: True also if `clients` is not known.
    """

    clients: tuple[str, ...] = ()
    type_: str = ""
    has_members: bool = False

    @property
    def words(self) -> str:
        """Why another client's commits would fail, for people; "" if they would not."""
        if self.type_ == SHARE:
            return "is a share group (KIP-932), which takes no commits"
        if not self.has_members:
            return ""
        if not self.clients:
            return f"has members of a {self.type_} group ({NEWER_TYPES[self.type_]})"
        shown = ", ".join(sorted(set(self.clients))[:SHOWN_CLIENTS])
        more = ", ..." if len(set(self.clients)) > SHOWN_CLIENTS else ""
        plural = "s" if len(self.clients) > 1 else ""
        return f"has {len(self.clients)} member{plural} ({shown}{more})"


async def group_members(client: ClusterClient, node: int, connection: str, group: str) -> GroupMembers:
    """Asks `node`, the group's coordinator. Consumers that assign partitions to themselves do not count.
    Raises GroupAuthorizationFailedError: the group may not be described. Raises KafkaError, OSError,
    TimeoutError: the coordinator does not answer, or has moved."""
    response = await client.send(node, DescribeGroupsRequest([group]), connection)
    code, _, state, _, _, members = response.groups[0][:6]
    if code == GROUP_NOT_AUTHORISED:
        raise GroupAuthorizationFailedError(group)
    if code:
        raise for_code(code)
    if members:
        return GroupMembers(tuple(name for _, name, *_ in members), has_members=True)
    if state.lower() != DEAD:  # a classic group without members
        return GroupMembers()
    try:
        listed = await client.send(node, NewerGroupsRequest(), connection)
    except NotImplementedError:  # an older broker
        return GroupMembers()
    if listed.error_code:
        raise for_code(listed.error_code)
    kind, state = next(
        ((kind, state) for name, _, state, kind, _ in listed.groups if name == group), ("", "")
    )
    kind, has_members = kind.lower(), state.lower() not in NO_MEMBERS
    if not kind:
        return GroupMembers()
    clients: tuple[str, ...] = ()
    if has_members and kind == CONSUMER:
        with contextlib.suppress(NotImplementedError):  # the broker is too old to name them
            described = await client.send(node, ConsumerGroupsRequest(group), connection)
            clients = tuple(name for _, _, _, _, name, *_ in described.groups[0][7])
            has_members = bool(clients) or described.groups[0][0] != GROUP_NOT_FOUND
    return GroupMembers(clients, kind, has_members)


class NewerGroupsResponse(Response):
    API_KEY = 16
    API_VERSION = 5
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        (
            "groups",
            CompactArray(("group", TEXT), ("protocol_type", TEXT), ("state", TEXT), ("type", TEXT), TAGS),
        ),
        TAGS,
    )


class NewerGroupsRequestV5(RequestStruct):
    """ListGroups, version 5: the first with types (KIP-848)."""

    API_KEY = 16
    API_VERSION = 5
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = NewerGroupsResponse
    SCHEMA = Schema(("states_filter", _TEXTS), ("types_filter", _TEXTS), TAGS)


class NewerGroupsRequest(Request[NewerGroupsRequestV5]):
    """The groups of `NEWER_TYPES` at a coordinator."""

    API_KEY = 16

    def build(self, request_struct_class: type[NewerGroupsRequestV5]) -> NewerGroupsRequestV5:
        return request_struct_class([], list(NEWER_TYPES), {})


_MEMBERS = CompactArray(
    *((name, TEXT) for name in ("member_id", "instance_id", "rack")),
    ("epoch", Int32),
    *((name, TEXT) for name in ("client_id", "host")),
    ("topics", _TEXTS),
    ("topic_pattern", TEXT),
    ("assigned", _TOPICS),
    ("assigned_tags", TaggedFields),
    ("target", _TOPICS),
    ("target_tags", TaggedFields),
    TAGS,
)


class ConsumerGroupsResponse(Response):
    API_KEY = 69
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("error_code", Int16),
                *((name, TEXT) for name in ("error_message", "group", "state")),
                ("epoch", Int32),
                ("assignment_epoch", Int32),
                ("assignor", TEXT),
                ("members", _MEMBERS),
                ("operations", Int32),
                TAGS,
            ),
        ),
        TAGS,
    )


class ConsumerGroupsRequestV0(RequestStruct):
    """ConsumerGroupDescribe, version 0."""

    API_KEY = 69
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = ConsumerGroupsResponse
    SCHEMA = Schema(("groups", _TEXTS), ("operations", Boolean), TAGS)


class ConsumerGroupsRequest(Request[ConsumerGroupsRequestV0]):
    """Describes a group of the KIP-848 protocol."""

    API_KEY = 69

    def __init__(self, group: str) -> None:
        self._group = group

    def build(self, request_struct_class: type[ConsumerGroupsRequestV0]) -> ConsumerGroupsRequestV0:
        return request_struct_class([self._group], False, {})
