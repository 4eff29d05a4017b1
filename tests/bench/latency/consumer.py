"""A plain aiokafka consumer in a process of its own, which only notes the latencies of messages.

Its group, with the commits of aiokafka's defaults, is named as the topic.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import uvloop
from aiokafka import AIOKafkaConsumer

from tests.bench.latency.histogram import Histogram


async def consume(bootstrap: str, topic: str, latencies: Histogram) -> None:
    """Reads the topic for ever."""
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=topic, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        async for record in consumer:
            latencies.note(record.timestamp)
    finally:
        await consumer.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Reads until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--latencies", type=Path, required=True)
    options = parser.parse_args(arguments)
    uvloop.run(consume(options.bootstrap, options.topic, Histogram(options.latencies)))


if __name__ == "__main__":
    main()
