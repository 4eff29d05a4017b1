"""A consumer of a real broker that is killed and restarted, as `processes` does it without a broker.

python -m tests.sdk.audit.kafka_processes <bootstrap> <topic> <folder> <lives>
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from pathlib import Path

from aiokafka import AIOKafkaConsumer, TopicPartition

from switchyard.audit import Audit, AuditedConsumer, KafkaOutput
from tests.sdk.audit import processes

RECORDS = 60_000


async def consume(
    bootstrap: str, topic: str, folder: Path, chance: random.Random, life: int, many: int
) -> None:
    """Consumes the topic. Each earlier life reads only up to its share, over and over; the last one reads to
    the end."""
    first, upto = (RECORDS * number // many for number in (life, life + 1))
    output = KafkaOutput(bootstrap, "east", topic=f"{topic}-audit")
    audit = Audit(origin="web", tier="consumer", cluster="east", wal=folder / processes.WAL, output=output,
                  log_interval_s=0.01, report_interval_s=0.02)  # fmt: skip
    reader = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=topic, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    place = TopicPartition(topic, 0)
    async with audit, AuditedConsumer(reader, audit) as consumer:
        reader.assign([place])
        while await consumer.position(place) < RECORDS:
            if chance.random() < 0.2:
                await consumer.getone()
            else:
                await consumer.getmany(timeout_ms=100, max_records=chance.choice([10, 100]))
            if chance.random() < 0.1:
                await consumer.commit()
            if upto < RECORDS and await consumer.position(place) >= upto:
                consumer.seek(place, first)
        await consumer.commit()
        assert await audit.close(60), audit.stats


def main(bootstrap: str, topic: str, folder: str, times: str) -> None:
    chance = random.Random(topic)
    killed, many = 0, int(times)
    for life in range(many):
        own = random.Random(chance.random())
        child = os.fork()
        if not child:
            asyncio.run(consume(bootstrap, topic, Path(folder), own, life, many))
            os._exit(0)
        if life < many - 1:
            processes.wait_random_time(child, chance, 0.6, 0.15)
            os.kill(child, signal.SIGKILL)
            killed += os.waitpid(child, 0)[1] == signal.SIGKILL
    assert os.waitpid(child, 0)[1] == 0, "the last life failed"
    sys.stdout.write(f"{killed}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
