"""A destination whose leader finds too few of its replicas in sync."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from app.kafka.topic_configs import alter
from app.yard import Yard
from tests.kafka.conftest import create
from tests.kafka.second_broker import FIRST, SECOND, create_on, delete, second_broker
from tests.replica.source import same, write
from tests.replica.stand import standing

HOME, AWAY = "east-regional", "east-aggregate"
IN_SYNC = "min.insync.replicas"


async def test_while_the_destination_has_too_few_replicas_nothing_is_lost_skipped_or_doubled_and_it_is_told(
    killable_yard: Yard, topic_name: str, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        stand = await stack.enter_async_context(
            standing(killable_yard.bootstrap(HOME), killable_yard.bootstrap(AWAY))
        )
        away = stand.target
        second = await stack.enter_async_context(second_broker(killable_yard, AWAY, tmp_path, away))
        await create(stand.source, topic_name)
        await create_on(away, {(topic_name, 0): [FIRST, SECOND]})
        stack.push_async_callback(delete, away, topic_name)
        await second.until_in_sync({(topic_name, 0): [FIRST, SECOND]})
        assert await alter(away, {topic_name: {IN_SYNC: "2"}}) == {}
        await write(stand, topic_name, 50)
        pump = await stand.begin(topic_name)
        await stand.copied([pump])

        await second.kill()
        await write(stand, topic_name, 50, "too few")
        await stand.until(lambda: "NotEnoughReplicas" in pump.status().trouble)
        status = pump.status()
        assert (status.state, status.committed, status.in_flight) == ("flowing", 50, 50)
        assert "lower min.insync.replicas" in status.trouble
        assert status.oldest_ms > 0
        assert "append-trouble" in stand.kinds()

        stand.kill(pump)  # nor is it otherwise with the next owner
        pump = await stand.begin(topic_name)
        await write(stand, topic_name, 50, "still")
        await stand.until(lambda: "NotEnoughReplicas" in pump.status().trouble)
        assert pump.base == 50

        # Its fetches move the high watermark; a lower setting alone does not, before the next append.
        await second.start()
        await stand.copied([pump])
        assert await same(stand, topic_name) == 150
        assert pump.status().trouble == ""
        assert "replica-resumed-unsure" not in stand.kinds()
