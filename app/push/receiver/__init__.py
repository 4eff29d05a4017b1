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

Needs grpcio only: neither Faust nor Kafka.
"""

from app.push.receiver.sdk import Ack, Message, Receiver, Retry, Skip, Stash, Verdict

__all__ = ["Ack", "Message", "Receiver", "Retry", "Skip", "Stash", "Verdict"]
