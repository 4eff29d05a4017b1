"""A plain Kafka consumer of the same topic: a pause that it sees as well is not the workers' fault.

python -m tests.system.witness BOOTSTRAP TOPIC PARTITIONS JOURNAL
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition


async def record_arrivals(bootstrap: str, topic: str, partitions: int, journal: Path) -> None:
    """Writes each record and its time of arrival to the journal until it is killed."""
    with journal.open("ab", buffering=0) as file:
        async with AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="latest") as consumer:
            consumer.assign([TopicPartition(topic, partition) for partition in range(partitions)])
            while True:
                for at, records in (await consumer.getmany(timeout_ms=1_000)).items():
                    at_ms = time.time_ns() / 1e6
                    lines = [
                        {"id": orjson.loads(record.value)["id"], "topic": topic, "partition": at.partition,
                         "offset": record.offset, "timestamp_ms": record.timestamp, "at_ms": at_ms}
                        for record in records
                    ]  # fmt: skip
                    file.write(b"".join(orjson.dumps(line) + b"\n" for line in lines))


if __name__ == "__main__":
    asyncio.run(record_arrivals(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
