"""Sends messages to a region; prints how many each region has."""

import asyncio
import json
import sys
from collections import Counter

from switchyard.producer import Region, RegionalProducer

bootstrap, topic, count = sys.argv[1], sys.argv[2], int(sys.argv[3])


async def main() -> None:
    async with RegionalProducer([Region("east", bootstrap)]) as producer:
        waiting = [await producer.send(topic, b"%d" % number, key=b"k") for number in range(count)]
        delivered = await asyncio.gather(*waiting)
    sys.stdout.write(json.dumps(Counter(one.region for one in delivered)))


asyncio.run(main())
