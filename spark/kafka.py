"""Kafka clusters as jobs read them: topics with their ids and bounds, and DataFrames of ranges of offsets.

Jobs read only records of committed transactions, up to the last stable offset. Lookups use the Kafka client
of Spark's connector, so that the same options (`security.protocol`, `sasl.jaas.config`, …) serve both.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark import RDD
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from app.archive.errors import BadOption, InvalidArchive, Unreachable, UnreadableTopic, cause
from spark import raw_ranges
from spark.archive.restore import client_options
from spark.jvm import jvm_of
from spark.progress import say
from spark.raw_ranges import Examined
from spark.schemas import RECORD
from spark.topics import ALL, KafkaTopic, LogBounds, Range, UnreadRange

TIMEOUT_MS = 30_000
POLL_MS = 1_000
BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
COMMITTED = "read_committed"
PIECE = 250_000  # offsets at most that a task reads with `raw_ranges`
TASKS_PER_CORE = 8  # each task waits once for a cluster that does not answer
GONE = "UnknownTopicOrPartitionException"

T = TypeVar("T")


class KafkaCluster:
    """A Kafka cluster. `options`: a Kafka client's properties. `suspects`: see `spark.reading`."""

    __slots__ = ("_client_failure", "_spark", "options", "suspects")

    def __init__(self, spark: SparkSession, bootstrap: str, options: Mapping[str, str] | None = None) -> None:
        self._spark = spark
        self.options = {**(options or {}), "bootstrap.servers": bootstrap}
        self.suspects: set[tuple[str, int]] = set()
        self._client_failure = ""  # why Python's Kafka client cannot use the options

    def cluster_id(self) -> str:
        with self._admin() as admin:
            return str(self._get(admin.describeCluster().clusterId()))

    def topics(self, pattern: str) -> dict[str, KafkaTopic]:
        """The topics whose whole name matches, with their bounds, without Kafka's internal topics.

        A topic or partition that the cluster does not describe is in `KafkaTopic.unread`.

        Raises:
            BadOption: The pattern is not a regular expression.
            Unreachable: The cluster does not answer, or describes no partition.
        """
        try:
            expression = re.compile(pattern)
        except re.error as failure:
            raise BadOption(f"--topics {pattern!r} is not a regular expression: {failure}") from failure
        with self._admin() as admin:
            names = [str(name) for name in self._get(admin.listTopics().names())]
            return self._described(admin, [name for name in names if expression.fullmatch(name)])

    def topic(self, name: str) -> KafkaTopic:
        """The topic of this name.

        Raises:
            InvalidArchive: The topic does not exist.
            Unreachable: The cluster does not answer.
            UnreadableTopic: The cluster does not describe a partition.
        """
        found = self.topics(re.escape(name)).get(name)
        if found is None:
            raise InvalidArchive(f"{self.options['bootstrap.servers']} has no topic {name!r}")
        if found.unread:
            raise UnreadableTopic("; ".join(map(str, found.unread)))
        return found

    def read(self, ranges: Sequence[Range], raw: Sequence[Range] = ()) -> DataFrame:
        """Reads `ranges` with Spark's connector, `raw` with `raw_ranges`; fails if records are gone.

        Jobs call `spark.reading` instead.
        """
        parts = [self._connected(ranges)] if ranges else []
        if raw:
            rows = self._in_tasks(raw, raw_ranges.rows)
            parts.append(self._spark.createDataFrame(rows, RECORD, verifySchema=False))
        if not parts:
            return self._spark.createDataFrame([], RECORD)
        return parts[0] if len(parts) == 1 else parts[0].unionAll(parts[1])

    def failing(self, ranges: Sequence[Range]) -> list[Range]:
        """The ranges that the connector cannot read. Each topic is read alone, and then each range of a
        failing topic.

        Raises:
            Unreachable: The cluster does not answer, so no range is to blame.
        """
        self.cluster_id()
        by_topic: dict[str, list[Range]] = defaultdict(list)
        for one in ranges:
            by_topic[one.topic].append(one)
        with self._silence(), ThreadPoolExecutor(self._spark.sparkContext.defaultParallelism) as threads:
            topics = list(by_topic.values())
            read = threads.map(self._is_read, topics)
            bad = [topic for topic, is_read in zip(topics, read, strict=True) if not is_read]
            alone = [one for topic in bad for one in topic]
            read = threads.map(lambda one: len(by_topic[one.topic]) > 1 and self._is_read([one]), alone)
            return [one for one, is_read in zip(alone, read, strict=True) if not is_read]

    def renumbering(self, ranges: Sequence[Range]) -> list[Range]:
        """The ranges whose records say other offsets than the broker gave, so that the connector skips some.
        A message names the reason if Python's Kafka client could not search all of them."""
        found: list[Examined] = []
        if not self._client_failure:
            try:
                client_options(self.options)
                found = self._collected(ranges, raw_ranges.look_for_own_offsets)
                why = next((one.why for one in found if one.why), "")
            except BadOption as error:  # the same in each round
                why = self._client_failure = str(error)
            if why:
                say(f"Some ranges were not searched for batches whose records have wrong offsets: {why}")
        odd = {(one.range.topic, one.range.partition) for one in found if one.is_odd}
        return [one for one in ranges if (one.topic, one.partition) in odd]

    def examined(self, ranges: Sequence[Range]) -> list[Examined]:
        """How far `raw_ranges` can read each range."""
        pieces: dict[tuple[str, int], list[Examined]] = defaultdict(list)
        for found in self._collected(ranges, raw_ranges.examine):
            pieces[found.range.topic, found.range.partition].append(found)
        return [
            Examined.joined(one, sorted(pieces[one.topic, one.partition], key=lambda found: found.range))
            for one in ranges
        ]

    def _collected(
        self, ranges: Sequence[Range], function: Callable[[Mapping[str, str], Iterable[Range]], Iterator[T]]
    ) -> list[T]:
        return self._in_tasks(ranges, function).collect() if ranges else []

    def _in_tasks(
        self, ranges: Sequence[Range], function: Callable[[Mapping[str, str], Iterable[Range]], Iterator[T]]
    ) -> RDD[T]:
        """Applies the function in Spark's Python tasks, to one piece of a range at a time."""
        pieces = [piece for one in ranges for piece in one.pieces(PIECE)]
        context = self._spark.sparkContext
        spread = context.parallelize(pieces, min(len(pieces), context.defaultParallelism * TASKS_PER_CORE))
        return spread.mapPartitions(partial(function, self.options))

    @contextmanager
    def _silence(self) -> Iterator[None]:
        """Switches Spark's log off, because failures are expected."""
        context, jvm = self._spark.sparkContext, jvm_of(self._spark)
        level = str(jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel())
        context.setLogLevel("OFF")
        try:
            yield
        finally:
            context.setLogLevel(level)

    def _is_read(self, ranges: Sequence[Range]) -> bool:
        try:
            self._connected(ranges).write.format("noop").mode("overwrite").save()
        except (PySparkException, Py4JJavaError):
            return False
        return True

    def _connected(self, ranges: Sequence[Range]) -> DataFrame:
        starts: dict[str, dict[str, int]] = defaultdict(dict)
        ends: dict[str, dict[str, int]] = defaultdict(dict)
        for one in ranges:
            starts[one.topic][str(one.partition)] = one.start
            ends[one.topic][str(one.partition)] = one.end
        assigned = {topic: [int(number) for number in numbers] for topic, numbers in starts.items()}
        reader = (
            self._spark.read.format("kafka")
            .options(**{f"kafka.{key}": value for key, value in self.options.items()})
            .option("kafka.isolation.level", COMMITTED)
            .option("assign", json.dumps(assigned))
            .option("startingOffsets", json.dumps(starts))
            .option("endingOffsets", json.dumps(ends))
            .option("includeHeaders", "true")
            .option("failOnDataLoss", "true")
        )
        if len(ranges) < self._spark.sparkContext.defaultParallelism:  # all cores read few partitions
            reader = reader.option("minPartitions", self._spark.sparkContext.defaultParallelism)
        return records(reader.load())

    def has_records(self, ranges: Sequence[Range]) -> bool:
        """Whether these ranges have a record. It reads up to the first record, with Kafka's consumer instead
        of a Spark job.

        Raises:
            Unreachable: The consumer made no progress for `TIMEOUT_MS`.
        """
        jvm = jvm_of(self._spark)
        properties = self._properties()
        for what in ("key", "value"):
            properties.setProperty(f"{what}.deserializer", BYTES)
        properties.setProperty("isolation.level", COMMITTED)
        try:
            consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(properties)
        except Py4JJavaError as failure:
            raise Unreachable(f"{self.options['bootstrap.servers']}: {cause(failure)}") from failure
        partition = jvm.org.apache.kafka.common.TopicPartition
        try:
            waiting = [(partition(one.topic, one.partition), one) for one in ranges]
            consumer.assign(self._list([at for at, _ in waiting]))
            for at, one in waiting:
                consumer.seek(at, one.start)
            reached, moved_s = 0, time.monotonic()
            while waiting:
                found = consumer.poll(jvm.java.time.Duration.ofMillis(POLL_MS))
                for at, one in waiting:
                    rows = found.records(at)
                    if rows.size() and rows.get(0).offset() < one.end:
                        return True
                before, reached = reached, sum(consumer.position(at) for at, _ in waiting)
                moved_s = time.monotonic() if reached != before else moved_s
                if time.monotonic() - moved_s > TIMEOUT_MS / 1000:
                    raise Unreachable(
                        f"{self.options['bootstrap.servers']}: no records of {ranges[0].topic} arrive"
                    )
                waiting = [(at, one) for at, one in waiting if consumer.position(at) < one.end]
            return False
        except Py4JJavaError as failure:
            raise Unreachable(f"{self.options['bootstrap.servers']}: {cause(failure)}") from failure
        finally:
            consumer.close()

    def topic_config(self, topic: str) -> dict[str, str]:
        """The topic's configuration in force."""
        jvm = jvm_of(self._spark)
        resource = jvm.org.apache.kafka.common.config.ConfigResource
        named = resource(resource.Type.TOPIC, topic)
        with self._admin() as admin:
            return self._settings_of(self._get(admin.describeConfigs(self._list([named])).all()).get(named))

    def create(self, topic: str, partitions: int, config: Mapping[str, str]) -> dict[str, str]:
        """Makes a topic with the cluster's default replication factor; returns its configuration in force."""
        jvm = jvm_of(self._spark)
        optional = jvm.java.util.Optional
        settings = jvm.java.util.HashMap()
        for key, value in config.items():
            settings.put(key, value)
        new = jvm.org.apache.kafka.clients.admin.NewTopic(topic, optional.of(partitions), optional.empty())
        with self._admin() as admin:
            made = admin.createTopics(self._list([new.configs(settings)]))
            self._get(made.all())
            return self._settings_of(self._get(made.config(topic)))

    def _settings_of(self, config: Any) -> dict[str, str]:
        jvm = jvm_of(self._spark)
        entries = jvm.java.util.ArrayList(config.entries())  # py4j cannot iterate a plain collection
        return {str(entry.name()): str(entry.value()) for entry in entries}

    def _described(self, admin: Any, names: list[str]) -> dict[str, KafkaTopic]:
        """The topics of these names, without those that were deleted meanwhile."""
        jvm = jvm_of(self._spark)
        descriptions = admin.describeTopics(self._list(names)).topicNameValues()
        spec = jvm.org.apache.kafka.clients.admin.OffsetSpec
        partition = jvm.org.apache.kafka.common.TopicPartition
        earliest, latest, partitions = jvm.java.util.HashMap(), jvm.java.util.HashMap(), {}
        ids: dict[str, str] = {}
        unread: dict[str, list[UnreadRange]] = {}
        for name in names:
            try:
                found = descriptions.get(name).get()
            except Py4JJavaError as failure:
                if GONE not in str(failure.java_exception):
                    ids[name] = ""
                    unread[name] = [UnreadRange(name, ALL, -1, -1, cause(failure))]
                continue
            ids[name] = str(found.topicId().toString())
            for one in found.partitions():
                at = partition(name, one.partition())
                partitions[name, int(one.partition())] = at
                earliest.put(at, spec.earliest())
                latest.put(at, spec.latest())
        level = jvm.org.apache.kafka.common.IsolationLevel.READ_COMMITTED
        options = jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(level)
        first, last = admin.listOffsets(earliest), admin.listOffsets(latest, options)
        bounds: dict[str, dict[int, LogBounds]] = defaultdict(dict)
        for (name, number), at in sorted(partitions.items()):
            try:
                ends = (one.partitionResult(at).get() for one in (first, last))
                bounds[name][number] = LogBounds(*(int(one.offset()) for one in ends))
            except Py4JJavaError as failure:
                unread.setdefault(name, []).append(UnreadRange(name, number, -1, -1, cause(failure)))
        if unread and not bounds:
            first_unread = next(iter(unread.values()))[0]
            raise Unreachable(f"{self.options['bootstrap.servers']}: {first_unread}")
        return {
            name: KafkaTopic(name, ids[name], bounds[name], tuple(unread.get(name, ())))
            for name in sorted(ids)
        }

    def _list(self, items: Sequence[Any]) -> Any:
        found = jvm_of(self._spark).java.util.ArrayList()
        for item in items:
            found.add(item)
        return found

    @contextmanager
    def _admin(self) -> Iterator[Any]:
        jvm = jvm_of(self._spark)
        properties = self._properties()
        try:
            admin = jvm.org.apache.kafka.clients.admin.Admin.create(properties)
        except Py4JJavaError as failure:
            raise Unreachable(f"{self.options['bootstrap.servers']}: {cause(failure)}") from failure
        try:
            yield admin
        finally:
            admin.close()

    def _properties(self) -> Any:
        properties = jvm_of(self._spark).java.util.Properties()
        for key, value in self.options.items():
            properties.setProperty(key, value)
        properties.setProperty("default.api.timeout.ms", str(TIMEOUT_MS))
        properties.setProperty("request.timeout.ms", str(TIMEOUT_MS))
        return properties

    def _get(self, future: Any) -> Any:
        try:
            return future.get()
        except Py4JJavaError as failure:
            raise Unreachable(f"{self.options['bootstrap.servers']}: {cause(failure)}") from failure


def records(frame: DataFrame) -> DataFrame:
    """The connector's columns as `schemas.RECORD`."""
    return frame.select(
        "topic",
        "partition",
        "offset",
        f.unix_millis("timestamp").alias("timestamp_ms"),
        f.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
        "headers",
    ).to(RECORD)


def read_options(path: Path | None) -> dict[str, str]:
    """Reads a Kafka client's properties file, in the format of Kafka's own tools.

    Raises:
        BadOption: The file cannot be read, or a line is not `key=value`.
    """
    found: dict[str, str] = {}
    if path is None:
        return found
    try:
        lines = path.read_text().splitlines()
    except OSError as failure:
        raise BadOption(f"--command-config {path}: {failure.strerror}") from failure
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith(("#", "!")):
            continue
        key, equals, value = text.partition("=")
        if not equals:
            raise BadOption(f"{path}, line {number}: {text!r} is not `key=value`")
        found[key.strip()] = value.strip()
    return found
