"""Deletes consumer groups without members."""

from __future__ import annotations

from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.admin import DeleteGroupsRequest

from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kafka.client.commits import CONNECTION, GROUP_COORDINATOR

GONE = {0, 69}  # deleted; GROUP_ID_NOT_FOUND


async def delete_group(client: ClusterClient, group: str) -> None:
    """Deletes a group with its commits; a missing group is no error. Raises ClusterUnreachable: the
    coordinator does not answer, or refuses because the group has members."""
    try:
        node = await client.client.coordinator_lookup(GROUP_COORDINATOR, group)
        response = await client.send(node, DeleteGroupsRequest([group]), CONNECTION)
    except (KafkaError, OSError, TimeoutError) as error:
        raise ClusterUnreachable(f"group {group} in {client.name} cannot be deleted: {error!r}") from error
    codes = {code for _, code in response.results}
    if refused := codes - GONE:
        why = ", ".join(for_code(code).__name__ for code in sorted(refused))
        raise ClusterUnreachable(f"group {group} in {client.name} cannot be deleted: {why}")
