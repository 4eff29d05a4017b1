"""The receiver SDK: write a handler and return a verdict, without a Kafka client.

    receiver = Receiver(host="0.0.0.0", port=8443)

    @receiver.on(topic="orders", group="billing")
    async def charge(message: Message) -> Ack | Retry | Renew | Stash | Skip | None:
        ...

    receiver.run()

| the handler                | what happens to the message                                             |
|----------------------------|-------------------------------------------------------------------------|
| returns None or `Ack()`    | acknowledged                                                            |
| returns `Retry(after=...)` | to the retry topic                                                      |
| returns `Renew(seconds)`   | delivered once more, with more time; no attempt counts                  |
| returns `Stash(reason)`    | to the dead letter queue                                                |
| returns `Skip()`           | acknowledged without having been handled                                |
| raises                     | delivered again a few times, then to the retry topic, then to the DLQ   |

The server supports both contracts: one call for each message, and streams of batches. Handlers work with
either. On streams a synchronous handler is the fastest: the server calls it where it reads the message, so it
should not block. An asynchronous handler is one task for each message, at most `max_tasks` at once.
`on_batch` handlers take lists of messages, and return a verdict for each, or one for all.

`message.time_left()` says how long a handler has. It may ask for more while it works: `message.renew(60)`.
For unary calls that returns False, and the handler returns `Renew(60)` instead.

`Receiver(interceptors=[...])` and `@receiver.intercept` run code around every handler, to decrypt, refuse or
measure (`switchyard.receiver.interceptors`). A tombstone has an empty `value` and `message.tombstone`. If
other regions share the workload, `message.role` says whether the sending region is the primary one, and under
which epoch.

Beside a web server, start and stop the receiver in its event loop (`await receiver.start()`, `await
receiver.stop()`). Or call `receiver.run` in a thread, and end it by `receiver.shutdown()`.

The package needs grpcio and protobuf only: neither Faust nor Kafka.
"""

from switchyard.receiver.interceptors import Interceptor, Outcome
from switchyard.receiver.server import Receiver
from switchyard.receiver.testing import TestClient
from switchyard.receiver.verdicts import Ack, Message, RegionRole, Renew, Retry, Skip, Stash, Verdict

__all__ = [
    "Ack", "Interceptor", "Message", "Outcome", "Receiver", "RegionRole", "Renew", "Retry", "Skip",
    "Stash", "TestClient", "Verdict",
]  # fmt: skip
