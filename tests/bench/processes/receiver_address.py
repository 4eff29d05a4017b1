"""The bench's end of `sdk_receiver`, which imports nothing of the bench, as a service would not."""

from __future__ import annotations

import json

from app.dev.demo.stage import Process, StageError, wait_until

READY_S = 30.0


def address_of(receiver: Process) -> str:
    """The receiver's address, once it serves. Raises StageError: it ended, or does not serve."""

    def serves() -> bool:
        if not receiver.running:
            raise StageError(f"{receiver.name} ended:\n{receiver.tail()}")
        return receiver.log.read_text().endswith("\n")

    wait_until(serves, READY_S, receiver.tail)
    address: str = json.loads(receiver.log.read_text().splitlines()[0])["address"]
    return address
