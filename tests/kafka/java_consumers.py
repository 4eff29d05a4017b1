"""Kafka's console consumers, which speak protocols that aiokafka lacks."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from app.dev.yard.jars import JarSet
from app.dev.yard.java import find_java


@contextmanager
def consuming(
    bootstrap: str, topic: str, group: str, client_id: str = "", *, shares: bool = False
) -> Iterator[None]:
    """Starts a member of the group that consumes the topic, by KIP-848's protocol or as a share group. It
    joins some time later."""
    tool, option = (
        ("ConsoleShareConsumer", ()) if shares else ("ConsoleConsumer", ("group.protocol=consumer",))
    )
    properties = (*option, *((f"client.id={client_id}",) if client_id else ()))
    command = [
        str(find_java().executable), "-Xmx128m", "-cp", JarSet.load().classpath,
        f"org.apache.kafka.tools.consumer.{tool}", "--bootstrap-server", bootstrap, "--topic", topic,
        "--group", group, *(word for one in properties for word in ("--consumer-property", one)),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()
