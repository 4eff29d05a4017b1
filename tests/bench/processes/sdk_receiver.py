"""How a receiver of our SDK begins in a process of its own: the first line of its output has its address."""

from __future__ import annotations

import json
import sys

import uvloop

from switchyard.receiver import Receiver


def serve(receiver: Receiver) -> None:
    """Serves until SIGTERM, after the line with the address."""

    def started(port: int) -> None:
        sys.stdout.write(json.dumps({"address": f"{receiver.host}:{port}"}) + "\n")
        sys.stdout.flush()

    uvloop.run(receiver.serve(started))
