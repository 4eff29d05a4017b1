"""The producer SDK: write to the nearest region, and to another region while the nearest is away.

    regions = [Region("east", "kafka.east:9092"), Region("west", "kafka.west:9092")]
    async with RegionalProducer(regions) as producer:
        delivered = await producer.send_and_wait("orders", b"...", key=b"customer 7")
        print(delivered.region, delivered.partition, delivered.offset)

Every aggregate cluster gets the messages of all regional clusters. So consumers get a message whichever
region it was written to.

Rules
1. All in-sync replicas of one region acknowledge a message that `send` accepts, or its future fails. After
   `Refused` no region has it; after `NotDelivered` a region may have it. A refusal (too large, no such topic
   or partition) fails only its message, and no other region is tried, so keep the topics of all regions
   alike. The producer never creates a topic. It asks for a missing one for 10 s, because the topic may be
   new.
2. The first region is home. The producer leaves a region after an error, or when it answers nothing, or
   acknowledges nothing that waits, for `unhealthy_after_s`. Then it sends the unacknowledged messages to the
   next healthy region, in their order. It returns home once home has been healthy for `return_after_s`; each
   time that home soon fails again doubles this. Before it returns, all messages are acknowledged, so the
   return duplicates none.
3. After a failover two regions may have a message that the first one did not acknowledge. One region may have
   it twice if a broker refused another message, because a new producer continues then. With
   `message_ids=True` each message has the header `switchyard-message-id`, which all copies share, so
   consumers can recognise them.
4. Within a region, messages of a key keep the order in which `send` was called. After a failover the messages
   of two regions have no order between them.

The package needs aiokafka only, 0.13 or newer. It logs to the standard logger `switchyard.producer`.
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
