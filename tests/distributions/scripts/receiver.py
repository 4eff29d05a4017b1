"""A receiver as a service writes it: prints its port, and each message's value once it has handled that."""

import asyncio
import sys

from switchyard.receiver import Message, Receiver, Retry

receiver = Receiver(port=0)


@receiver.on(topic="orders", group="billing")
async def handle(message: Message):
    sys.stdout.write(message.value.decode() + "\n")
    return Retry(after=5.0) if message.value == b"later" else None


def started(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


asyncio.run(receiver.serve(started))
