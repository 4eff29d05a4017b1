"""`python -m spark restore` runs `spark.archive.restore`."""

from __future__ import annotations

import argparse
import re
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from app.archive.log import Archive
from app.archive.reader import LAST_MS, LAST_OFFSET, ArchiveQuery, ArchiveReader
from app.kernel.json_types import JsonObject
from spark.archive.frames import matching_records, read_files, sizes
from spark.archive.packed import packed
from spark.archive.restore import (
    RestoreNeeds,
    batch_bytes,
    check_target,
    client_options,
    is_tight,
    restore_name,
    restore_parts,
    split,
    target_config,
)
from spark.jobs import common
from spark.progress import say, watching

DESCRIPTION = """\
Writes a range of an archive back to a topic: each record to its former partition, with its key, value,
headers and timestamp; tombstones stay tombstones. A topic that does not exist is made with unlimited
retention. If the topic would refuse, change or delete the records at once, the job stops and says what to
set. It prints the plan; --execute restores. A job that is killed and started again within the brokers'
offsets.retention.minutes (a week by default) continues, and writes no record twice.
"""
EXAMPLES = """\
examples:
  python -m spark restore --archive /var/lib/archive --topic orders --from 2026-11-22T09:00 \\
      --to 2026-11-22T10:00 --bootstrap 127.0.0.1:9092 --into orders-restored --execute
  python -m spark restore --archive /var/lib/archive --topic orders --partitions 0,3 --offsets 1000-2000 \\
      --bootstrap 127.0.0.1:9092 --into orders-restored
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--archive", required=True, type=Path, metavar="DIR")
    parser.add_argument("--topic", required=True, help="the archived topic")
    parser.add_argument(
        "--topic-id", help="the lineage of a topic that was deleted and made again (default: the newest)"
    )
    parser.add_argument("--from", dest="from_ms", type=common.time_ms, default=-LAST_MS, metavar="TIME")
    parser.add_argument(
        "--to", dest="to_ms", type=common.time_ms, default=LAST_MS, metavar="TIME", help="exclusive"
    )
    parser.add_argument("--partitions", type=_numbers, metavar="0,3")
    parser.add_argument(
        "--offsets", type=_range, default=(0, LAST_OFFSET), metavar="START-END", help="END is exclusive"
    )
    parser.add_argument(
        "--quarantined", action="store_true", help="also restore records without a usable timestamp"
    )
    common.add_cluster(parser)
    parser.add_argument("--into", required=True, metavar="TOPIC", help="the topic to write to")
    parser.add_argument(
        "--again", default="", metavar="WORD", help="repeat a finished restore, under this name"
    )
    parser.add_argument(
        "--compacted",
        action="store_true",
        help="allow a compacted topic, which keeps the latest record of each key",
    )
    parser.add_argument("--execute", action="store_true", help="restore (default: only print the plan)")
    common.add_session(parser)


def run(options: Namespace) -> int:
    archive = Archive.open(options.archive)
    reader = ArchiveReader(archive)
    query = ArchiveQuery(
        options.topic,
        from_ms=options.from_ms,
        to_ms=options.to_ms,
        partitions=options.partitions,
        start=options.offsets[0],
        end=options.offsets[1],
        topic_id=reader.lineage(options.topic, options.topic_id),
        quarantined=options.quarantined,
    )
    spark = common.session("restore", options)
    target = common.cluster(spark, options.bootstrap, options.command_config)
    client_options(target.options)
    name = restore_name(archive, query, options.into, options.again)
    parts = split(reader, query, options.into, name, target.options)
    planned = {"topic": options.topic, "into": options.into, "restore": name}
    planned |= {"records_at_most": sum(part.rows for part in parts), "partitions": len(parts)}
    if not parts:
        return _nothing(planned)
    with watching(spark, "Measuring"), common.spark_failures("Measuring the archived records"):
        needs = _needs(spark, reader, query)
    if needs is None:
        return _nothing(planned)
    planned |= {"largest_record_bytes": needs.record_bytes}
    existing = target.topics(re.escape(options.into)).get(options.into)
    config = target.topic_config(options.into) if existing else {}
    if existing:
        if is_tight(config, needs):
            with watching(spark, "Compressing"), common.spark_failures("Compressing the archived records"):
                needs = _packed(spark, reader, query, needs, batch_bytes(config))
        _check(options, len(existing.partitions), config, needs)
    say(
        f"Restores at most {planned['records_at_most']:,} records of {len(parts)} partitions"
        f" to {options.into}{'' if existing else f', a new topic of {needs.partitions} partitions'}."
    )
    if not options.execute:
        say("Nothing was written; --execute restores.")
        common.result(planned | {"executed": False, "records": 0})
        return 0
    if not existing:
        config = target.create(options.into, needs.partitions, target_config(needs, _now_ms()))
        _check(options, needs.partitions, config, needs)  # the cluster's defaults decide the other settings
    parts = [replace(part, batch_bytes=batch_bytes(config)) for part in parts]
    with (
        watching(spark, "Restoring"),
        common.spark_failures("Restoring stopped (start it again to continue)"),
    ):
        done = dict(spark.sparkContext.parallelize(parts, len(parts)).mapPartitions(restore_parts).collect())
    say(f"{sum(done.values()):,} records restored.")
    common.result(planned | {"executed": True, "records": sum(done.values())})
    return 0


def _nothing(planned: JsonObject) -> int:
    say("The archive has no records in that range.")
    common.result(planned | {"executed": False, "records": 0})
    return 0


def _needs(spark: SparkSession, reader: ArchiveReader, query: ArchiveQuery) -> RestoreNeeds | None:
    """None: files overlap the query, but no record matches."""
    rows = sizes(_matching_records(spark, reader, query)).collect()
    return RestoreNeeds.of(row.asDict() for row in rows) if rows else None


def _packed(
    spark: SparkSession, reader: ArchiveReader, query: ArchiveQuery, needs: RestoreNeeds, most_bytes: int
) -> RestoreNeeds:
    rows = packed(_matching_records(spark, reader, query), most_bytes).collect()
    return needs.packed(row.asDict() for row in rows)


def _matching_records(spark: SparkSession, reader: ArchiveReader, query: ArchiveQuery) -> DataFrame:
    return matching_records(
        read_files(spark, [str(reader.archive.root / file.path) for file in reader.files(query)]), query
    )


def _check(options: Namespace, partitions: int, config: Mapping[str, str], needs: RestoreNeeds) -> None:
    check_target(options.into, partitions, config, needs, _now_ms(), compacted=options.compacted)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _numbers(text: str) -> frozenset[int]:
    if not re.fullmatch(r"[0-9]+(,[0-9]+)*", text):
        msg = f"{text!r} is not a list of partitions: give numbers, such as 0,3"
        raise argparse.ArgumentTypeError(msg)
    return frozenset(int(one) for one in text.split(","))


def _range(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]+)-([0-9]+)", text)
    if not found or int(found[1]) >= int(found[2]):
        msg = f"{text!r} is not a range of offsets: give START-END, such as 1000-2000; END is exclusive"
        raise argparse.ArgumentTypeError(msg)
    return int(found[1]), int(found[2])
