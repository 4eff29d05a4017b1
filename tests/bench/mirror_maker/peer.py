"""Runs MirrorMaker 2 in its dedicated mode: one process, one task, one topic.

Rules
1. The source has another alias in every run. Each run therefore copies from the beginning into a topic of its
   own, "<alias>.<topic>" (MirrorMaker's own naming), with its own offsets.
2. It has the settings for throughput that its documentation advises, as far as they keep order. The producer
   is idempotent, with five requests in flight (Connect's default is one) and batches of 128 KB for a linger
   of 5 ms. Compression is the topic's own; polls have up to 5,000 records. Heap and collector are as in
   Kafka's own start script.
3. Tasks other than copying are off: heartbeats, checkpoints of consumer groups, syncs of settings and access
   lists. Offset syncs stay: they are its offset map. A bench adds settings by `more`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from app.dev.demo.stage import DemoStage, Process
from app.dev.yard.java import Java
from tests.bench.peer_jars import fetched

VERSION = "4.2.0"
COORDINATES = (
    f"org.apache.kafka:connect-mirror:{VERSION}",
    "org.slf4j:slf4j-simple:1.7.36",
)
MAIN = "org.apache.kafka.connect.mirror.MirrorMaker"
# connect-mirror-maker.sh and kafka-run-class.sh of Kafka 4.2
JVM = ("-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
       "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent",
       "-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")  # fmt: skip
SETTINGS = {
    "{alias}->copies.enabled": "true",
    "{alias}->copies.topics": "{topic}",
    "tasks.max": "1",
    "replication.factor": "1",
    "offset-syncs.topic.replication.factor": "1",
    "heartbeats.topic.replication.factor": "1",
    "checkpoints.topic.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "offset.storage.partitions": "1",
    "status.storage.replication.factor": "1",
    "status.storage.partitions": "1",
    "config.storage.replication.factor": "1",
    "emit.heartbeats.enabled": "false",
    "emit.checkpoints.enabled": "false",
    "sync.topic.configs.enabled": "false",
    "sync.topic.acls.enabled": "false",
    "{alias}.consumer.max.poll.records": "5000",
    "copies.producer.enable.idempotence": "true",
    "copies.producer.max.in.flight.requests.per.connection": "5",
    "copies.producer.batch.size": "131072",
    "copies.producer.linger.ms": "5",
    "copies.producer.compression.type": "{codec}",
}


def class_path() -> str:
    """Its jars. Raises FetchError."""
    return os.pathsep.join(str(jar) for jar in fetched(f"mirror-maker-{VERSION}", COORDINATES))


def start(
    stage: DemoStage,
    java: Java,
    jars: str,
    alias: str,
    clusters: tuple[str, str],
    topic: str,
    codec: str,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Process:
    """Starts it for `topic`, from the first of `clusters` (bootstrap addresses) to the second; end it with
    `kill`. The copy is called "<alias>.<topic>". `more`: settings above those here."""
    settings = {
        "clusters": f"{alias}, copies",
        f"{alias}.bootstrap.servers": clusters[0],
        "copies.bootstrap.servers": clusters[1],
        **{
            name.format(alias=alias): value.format(topic=topic, codec=codec)
            for name, value in SETTINGS.items()
        },
        **more,
    }
    file: Path = stage.home / f"{alias}.properties"
    file.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    return stage.start(f"mirror-maker-{alias}", [str(java.executable), *JVM, "-cp", jars, MAIN, str(file)])
