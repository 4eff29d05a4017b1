"""The producer SDK: write to the nearest region, and to another one while that is away.

    regions = [Region("east", "kafka.east:9092"), Region("west", "kafka.west:9092")]
    async with RegionalProducer(regions) as producer:
        delivered = await producer.send_and_wait("orders", b"...", key=b"customer 7")
        print(delivered.region, delivered.partition, delivered.offset)

Every aggregate cluster gets what is written to any regional one, so it does not matter to consumers where a
message was written.

Rules
1. What `send` takes is acknowledged by all in-sync replicas of one region, or its future fails: with
   `Refused` it is nowhere, with `NotDelivered` nobody knows. What a region will not take (too large, no such
   topic or partition) fails alone, and is not offered to another region: let their topics be alike. The
   producer never creates a topic; a missing one is asked for during 10 s, since it may be new.
2. The first region is home. A region is left when it does not answer, or acknowledges nothing of what waits,
   for `unhealthy_after_s`; what it did not acknowledge is sent to the next healthy one, in the order in which
   it was taken. It comes back to home once that has been healthy for `return_after_s`, and longer after each
   time that home failed soon again; by then all is acknowledged, nothing is sent twice by coming back.
3. A message that a region did not answer for may stand in two regions after a failover (and twice in one
   after a broker has refused another: a new producer goes on). With `message_ids=True` each has a header
   `switchyard-message-id`, the same wherever it stands, by which consumers can tell.
4. Messages of one key are in order within a region, if `send` was called in that order; after a failover what
   one region has may have come before or after what the other has.

Needs aiokafka only, 0.13 or newer. Logs to the standard logger `switchyard.producer`.
"""

from switchyard.producer.messages import (
    MESSAGE_ID,
    Delivered,
    Hooks,
    NotDelivered,
    ProducerClosed,
    ProducerError,
    Refused,
)
from switchyard.producer.region_link import Region
from switchyard.producer.regional_producer import RegionalProducer

__all__ = [
    "MESSAGE_ID", "Delivered", "Hooks", "NotDelivered", "ProducerClosed", "ProducerError", "Refused",
    "Region", "RegionalProducer",
]  # fmt: skip
