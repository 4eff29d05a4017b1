"""A receiver of our SDK, in a process of its own, whose handler does nothing but note a message's latency."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from switchyard.receiver import Message, Receiver
from tests.bench.latency.histogram import Histogram
from tests.bench.processes.sdk_receiver import serve


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--latencies", type=Path, required=True)
    options = parser.parse_args(arguments)
    latencies = Histogram(options.latencies)
    receiver = Receiver()

    @receiver.on(topic=options.topic, group=options.group)
    def note(message: Message) -> None:
        latencies.note(message.timestamp_ms)

    serve(receiver)


if __name__ == "__main__":
    main()
