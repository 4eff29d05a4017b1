"""A sample receiver for the demo and the tests: each message says how to handle it, and a journal records
every delivery.

A message's body is JSON: {"id": "...", "behaviour": "ok|slow|retryable|poison|crash", "ms": 50, "fails": 1}.
The journal has a line for each delivery, written before the answer. So it shows all deliveries, whichever
process is killed.

    python -m app.dev.sample_receiver --group billing --topic orders --journal /tmp/journal.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import orjson

from switchyard.receiver import Ack, Message, Receiver, Retry, Stash, Verdict


class Behaviours:
    """Handles messages as they say; counts deliveries by id, for those that fail a number of times."""

    def __init__(self, journal: Path, latency_s: float) -> None:
        self._file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._latency_s = latency_s
        self._seen: Counter[str] = Counter()

    async def handle(self, message: Message) -> Verdict:
        """Handles one delivery."""
        try:
            body: Any = orjson.loads(message.value)
            name, behaviour = str(body["id"]), body.get("behaviour", "ok")
        except (ValueError, TypeError, KeyError):
            body, name, behaviour = {}, "", "poison"
        self._seen[name] += 1
        fails_now = self._seen[name] <= body.get("fails", 1)
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        if behaviour == "slow":
            await asyncio.sleep(body.get("ms", 100) / 1000)
        verdict: Verdict = Ack()
        outcome = "ok"
        if behaviour == "poison":
            verdict, outcome = Stash("poison: cannot ever be handled"), "poison"
        elif behaviour == "retryable" and fails_now:
            verdict, outcome = Retry(), "retryable"
        elif behaviour == "crash" and fails_now:
            outcome = "crash"
        self._note(message, name, outcome)
        if outcome == "crash":
            raise RuntimeError("the handler crashed, as the message told it to")
        return verdict

    def _note(self, message: Message, name: str, outcome: str) -> None:
        line = {
            "id": name,
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "retry_count": message.retry_count,
            "attempt": message.attempt,
            "outcome": outcome,
            "timestamp_ms": message.timestamp_ms,
            "at_ms": time.time_ns() // 1_000_000,
        }
        if (role := message.role) is not None:
            line |= {"region": role.region, "primary": role.primary, "epoch": role.epoch}
        os.write(self._file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


def instant(_: Message) -> Verdict:
    """Acknowledges everything at once, for benchmarks."""
    return None


def _credentials(options: argparse.Namespace) -> grpc.ServerCredentials | None:
    if options.tls_cert is None:
        return None
    pair = options.tls_key.read_bytes(), options.tls_cert.read_bytes()
    authority = None if options.client_ca is None else options.client_ca.read_bytes()
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)


def build(options: argparse.Namespace) -> Receiver:
    """The receiver for these options."""
    receiver = Receiver(options.host, options.port, credentials=_credentials(options))
    if options.instant and options.latency_ms:

        async def wait(_: Message) -> Verdict:
            await asyncio.sleep(options.latency_ms / 1000)
            return None

        handler: Any = wait
    elif options.instant:
        handler = instant
    else:
        handler = Behaviours(options.journal, options.latency_ms / 1000).handle
    for topic in options.topic:
        receiver.on(topic=topic, group=options.group)(handler)
    return receiver


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m app.dev.sample_receiver", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: a free one (default)")
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic", action="append", required=True, help="may be given several times")
    parser.add_argument("--journal", type=Path, default=Path("journal.jsonl"), help="appended to")
    parser.add_argument("--latency-ms", type=float, default=0, help="waited before every answer")
    parser.add_argument("--instant", action="store_true", help="no journal, body not looked at")
    parser.add_argument("--tls-cert", type=Path, metavar="PEM", help="listen with TLS")
    parser.add_argument("--tls-key", type=Path, metavar="PEM", help="of this certificate")
    parser.add_argument("--client-ca", type=Path, metavar="PEM", help="clients must show a certificate of it")
    options = parser.parse_args(arguments)
    if (options.tls_cert is None) != (options.tls_key is None):
        parser.error("--tls-cert and --tls-key belong together: give both or none")
    if options.client_ca is not None and options.tls_cert is None:
        parser.error("--client-ca needs --tls-cert and --tls-key")
    return options


def main() -> None:
    """Serves until SIGTERM."""
    import uvloop

    receiver = build(parse())

    def started(port: int) -> None:
        sys.stdout.write(json.dumps({"address": f"{receiver.host}:{port}", "pid": os.getpid()}) + "\n")
        sys.stdout.flush()

    uvloop.run(receiver.serve(started))


if __name__ == "__main__":
    main()
