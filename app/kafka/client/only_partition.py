"""The one partition of an answer to a request that asked about one."""

from __future__ import annotations

from typing import Any

from aiokafka.errors import RequestTimedOutError


def only_partition(response: Any) -> list[Any]:
    """Its fields.

    Raises:
        RequestTimedOutError: there is none: the broker holds answers back by a quota (KIP-219). Ask again.
    """
    if not response.topics:
        raise RequestTimedOutError(f"a quota holds the answer back for {response.throttle_time_ms} ms")
    ((_, (found,)),) = response.topics
    return list(found)
