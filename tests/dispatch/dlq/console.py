"""A console over a real cluster, with a workload whose queue is filled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tests.dispatch.dlq.queues import Clusters, DeadLetterQueue
from tests.web.runtime_fake import FakeRuntime, definition, put, serving


@contextmanager
def served(
    bootstrap: str, topic: str, partitions: int, letters: int, lost: int, reason: str
) -> Iterator[tuple[str, FakeRuntime, DeadLetterQueue]]:
    """Its address, and a queue of `letters` numbers, of which the last `lost` are lost data for `reason`."""
    fed, queue = FakeRuntime(), DeadLetterQueue(bootstrap, topic)
    fed.clusters = Clusters(bootstrap)  # type: ignore[assignment]
    fed.apply(put(definition(topic=topic)))

    async def fill() -> None:
        await queue.create(partitions)
        await queue.fill(range(letters - lost))
        await queue.fill(range(letters - lost, letters), code="DATA_LOSS", reason=reason)

    asyncio.run(fill())
    with serving(fed) as url:
        yield url, fed, queue
