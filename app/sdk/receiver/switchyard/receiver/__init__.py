"""The receiver SDK: write a handler, return a verdict, never run a Kafka client.

    receiver = Receiver(port=8443)

    @receiver.on(topic="orders", group="billing")
    async def charge(message: Message) -> Ack | Retry | Stash | Skip | None:
        ...

    receiver.run()

| the handler                | what happens to the message                                             |
|----------------------------|-------------------------------------------------------------------------|
| returns None or `Ack()`    | acknowledged                                                            |
| returns `Retry(after=...)` | to the retry topic                                                      |
| returns `Stash(reason)`    | to the dead letter queue                                                |
| returns `Skip()`           | acknowledged without having been handled                                |
| raises                     | delivered again a few times, then to the retry topic, then to the DLQ   |

It serves both contracts, one call a message and streams of batches; handlers do not notice. On streams a
synchronous handler is the quickest: it is called where the message is read, and should not block. An
asynchronous one is a task a message, `max_tasks` at once. `on_batch` takes lists of messages and returns a
verdict for each, or one for all.

`Receiver(interceptors=[...])` and `@receiver.intercept` put code around every handler, to decrypt, refuse or
measure (`switchyard.receiver.interceptors`). A tombstone has an empty `value` and `message.tombstone`. Of a
workload of several regions `message.role` says whether the region that sends is the primary one, and under
which epoch.

Needs grpcio and protobuf only: neither Faust nor Kafka.
"""

from switchyard.receiver.interceptors import Interceptor, Outcome
from switchyard.receiver.server import Receiver
from switchyard.receiver.testing import TestClient
from switchyard.receiver.verdicts import Ack, Message, RegionRole, Retry, Skip, Stash, Verdict

__all__ = [
    "Ack", "Interceptor", "Message", "Outcome", "Receiver", "RegionRole", "Retry", "Skip", "Stash",
    "TestClient", "Verdict",
]  # fmt: skip
