"""A plain consumer of a group that notes its records and commits after every batch, in a process of its own.

    python -m tests.bench.failing_over.consumer --bootstrap B --group G --journal FILE --place P TOPIC...

It connects at once and joins its group when the file of `--when` exists. The start of a process is no part of
a failover. A line of the journal has a record's message, its place and its time of arrival.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from pathlib import Path

import orjson
from aiokafka import AIOKafkaConsumer

LOOK_S = 0.002


async def consume(options: argparse.Namespace) -> None:
    """Consumes until it is killed."""
    file = os.open(options.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=options.bootstrap, group_id=options.group, enable_auto_commit=False,
        auto_offset_reset="earliest",
    )  # fmt: skip
    await consumer.start()
    while options.when and not options.when.exists():  # noqa: ASYNC110 - a file cannot notify
        await asyncio.sleep(LOOK_S)
    consumer.subscribe(options.topic)
    while True:
        found = await consumer.getmany(timeout_ms=200)
        every = {
            "at_ms": time.time_ns() / 1e6, "outcome": "ok", "region": options.place,
            "epoch": 0 if options.when is None else 1, "primary": True,
        }  # fmt: skip
        lines = [
            orjson.dumps(
                {
                    **every, "id": orjson.loads(record.value or b"")["id"],
                    "topic": at.topic, "partition": at.partition, "offset": record.offset,
                },
                option=orjson.OPT_APPEND_NEWLINE,
            )
            for at, records in found.items()
            for record in records
        ]  # fmt: skip
        if lines:
            os.write(file, b"".join(lines))
            await consumer.commit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--bootstrap", "--group", "--place"):
        parser.add_argument(name, required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--when", type=Path)
    parser.add_argument("topic", nargs="+")
    asyncio.run(consume(parser.parse_args()))


if __name__ == "__main__":
    main()
