"""Access control lists of a secured cluster: granted and withdrawn, one by one, by its administrator.

acls = Acls(client of the administrator)
await acls.allow("reader", TOPIC, "orders", READ, DESCRIBE)
await acls.withdraw("reader", TOPIC, "orders", READ)
"""

from __future__ import annotations

from typing import Any

from aiokafka.protocol.admin import CreateAclsRequest_v1, DeleteAclsRequest_v1
from aiokafka.protocol.api import Request

from app.dev.yard import Yard
from app.kafka.client.cluster import ClusterClient, ClusterSpec

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5  # Kafka's numbers, as of all below
READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE = 3, 4, 5, 6, 7, 8
CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 9, 10, 11, 12
KAFKA_CLUSTER = "kafka-cluster"  # the name of the only resource of its type
LITERAL, PREFIXED = 3, 4
_ALLOW = 3


class _Create(Request[CreateAclsRequest_v1]):
    API_KEY = 30

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def build(self, request_struct_class: type[CreateAclsRequest_v1]) -> CreateAclsRequest_v1:
        return CreateAclsRequest_v1(self._rows)


class _Delete(Request[DeleteAclsRequest_v1]):
    API_KEY = 31

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows

    def build(self, request_struct_class: type[DeleteAclsRequest_v1]) -> DeleteAclsRequest_v1:
        return DeleteAclsRequest_v1(self._rows)


def spec_of(yard: Yard, cluster: str, user: str, name: str = "") -> ClusterSpec:
    """The settings with which a user reaches a cluster of a secured yard; `name` is its local name."""
    assert yard.security is not None
    return ClusterSpec(
        name or cluster, (yard.bootstrap(cluster),), protocol="SASL_PLAINTEXT", mechanism="PLAIN",
        username=user, password=yard.security.users[user],
    )  # fmt: skip


class Acls:
    """Grants and withdraws permissions. `client` is logged in as an administrator."""

    def __init__(self, client: ClusterClient) -> None:
        self._client = client

    async def allow(
        self, user: str, resource: int, name: str, *operations: int, pattern: int = LITERAL
    ) -> None:
        """Grants a user these operations on a resource."""
        rows = [(resource, name, pattern, f"User:{user}", "*", one, _ALLOW) for one in operations]
        found = await self._ask(_Create(rows))
        assert all(not code for code, *_ in found.creation_responses), found

    async def withdraw(
        self, user: str, resource: int, name: str, *operations: int, pattern: int = LITERAL
    ) -> None:
        """Withdraws a grant."""
        rows = [(resource, name, pattern, f"User:{user}", "*", one, _ALLOW) for one in operations]
        found = await self._ask(_Delete(rows))
        assert all(not code and matching for code, _, matching in found.filter_responses), found

    async def _ask(self, request: Any) -> Any:
        return await self._client.send((await self._client.metadata([])).controller_id, request)
