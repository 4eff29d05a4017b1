"""Sends messages through an audited producer of aiokafka, which reports into Kafka."""

import asyncio
import sys

from aiokafka import AIOKafkaProducer

from switchyard.audit import Audit, AuditedProducer, KafkaOutput

bootstrap, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])


async def main() -> None:
    output = KafkaOutput(bootstrap, "east", topic=f"{topic}-reports")
    async with (
        Audit(origin="billing-api", tier="proxy-client", cluster="east", wal=None, output=output) as audit,
        AuditedProducer(AIOKafkaProducer(bootstrap_servers=bootstrap), audit) as producer,
    ):
        await asyncio.gather(*[await producer.send(topic, b"%d" % number) for number in range(count)])


asyncio.run(main())
