"""Deletes consumer groups that nobody is in."""

from __future__ import annotations

from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.admin import DeleteGroupsRequest

from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kafka.client.commits import CONNECTION, GROUP_COORDINATOR

GONE = {0, 69}  # deleted; there is none


async def delete_group(client: ClusterClient, group: str) -> None:
    """Deletes a group with its positions; one that is not there is no error.

    Raises:
        ClusterUnreachable: its coordinator does not answer, or refuses (somebody is in it).
    """
    try:
        node = await client.client.coordinator_lookup(GROUP_COORDINATOR, group)
        response = await client.send(node, DeleteGroupsRequest([group]), CONNECTION)
    except (KafkaError, OSError, TimeoutError) as error:
        raise ClusterUnreachable(f"group {group} in {client.name} cannot be deleted: {error!r}") from error
    codes = {code for _, code in response.results}
    if refused := codes - GONE:
        why = ", ".join(for_code(code).__name__ for code in sorted(refused))
        raise ClusterUnreachable(f"group {group} in {client.name} is not deleted: {why}")
