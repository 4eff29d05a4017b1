"""A receiver as a service writes it: it prints its port, and each message's value once it has handled it."""

import asyncio
import sys

from switchyard.receiver import Message, Receiver, Retry

WINDOW = 4
receiver = Receiver(port=0, window=WINDOW)


@receiver.on(topic="orders", group="billing")
async def handle(message: Message):
    sys.stdout.write(message.value.decode() + "\n")
    if message.value == b"slow":
        sys.stdout.flush()
        await asyncio.sleep(3600)
    return Retry(after=5.0) if message.value == b"later" else None


def started(port: int) -> None:
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


asyncio.run(receiver.serve(started))
