"""The only partition in the answer to a request that named one."""

from __future__ import annotations

from aiokafka.errors import RequestTimedOutError

from app.kafka.client.aiokafka_types import ResponseFields


def only_partition(response: ResponseFields) -> list[ResponseFields]:
    """The partition's fields. Raises RequestTimedOutError: a quota delays the answer (KIP-219), so it is
    empty. Try again."""
    if not response.topics:
        raise RequestTimedOutError(f"a quota delays the answer by {response.throttle_time_ms} ms")
    ((_, (found,)),) = response.topics
    return list(found)
