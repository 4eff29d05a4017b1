"""`python -m spark archive`: rounds of `spark.archive.ingest`."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from app.archive.errors import (
    BadOption,
    ConcurrentCommit,
    InvalidArchive,
    SparkJobError,
    Unreachable,
    UnreadableTopic,
)
from app.archive.log import Archive
from spark.archive.ingest import IngestResult, run_round
from spark.jobs import common
from spark.kafka import KafkaCluster
from spark.progress import say, watching

DESCRIPTION = """\
Archives topics as Parquet files, partitioned by topic, date and hour of the records' timestamps (UTC),
exactly once: a job that is killed and started again goes on where the last complete round ended. A late
record goes to its old hour. Records of open or aborted transactions are left out. Records without a usable
timestamp (none, or more than a day ahead, as nanoseconds are) are kept in the archive's quarantine, and
counted. A cluster that does not answer is told, and asked again with the next round; --once ends then, with
exit code 7. A topic, partition or offsets that cannot be read are named. They hold up no other, count as not
archived, and are tried again with each round; --once ends then with exit code 9.
"""
EXAMPLES = """\
examples:
  python -m spark archive --bootstrap 127.0.0.1:9092 --topics orders --to /var/lib/archive --once
  python -m spark archive --bootstrap 127.0.0.1:9092 --topics 'orders|payments\\..*' \\
      --to /var/lib/archive --every 1m
"""
ROUND_RECORDS = 5_000_000  # what a kill costs, and how long others wait for what is new


def add_arguments(parser: ArgumentParser) -> None:
    """The job's options."""
    common.add_cluster(parser)
    parser.add_argument("--topics", required=True, metavar="REGEX", help="topics whose whole name matches")
    parser.add_argument(
        "--to", required=True, type=Path, metavar="DIR", help="the archive, one for each cluster"
    )
    parser.add_argument("--once", action="store_true", help="archive what is there now, and end")
    parser.add_argument(
        "--every",
        type=common.seconds,
        default=60.0,
        metavar="30s",
        help="how often to look for more (default: 60s)",
    )
    common.add_round(parser, ROUND_RECORDS)
    common.add_session(parser)


def run(options: Namespace) -> int:
    """Archives until there is no more, or for ever."""
    spark = common.session("archive", options)
    source = common.cluster(spark, options.bootstrap, options.command_config)
    sums = {"records": 0, "quarantined": 0, "files": 0, "offsets_gone_before": 0}
    unread = common.UnreadRanges()
    while True:
        began_s = time.monotonic()
        try:
            with watching(spark, "Archiving"):
                told = common.tried(lambda: _round(options, source), Unreachable)
        except (BadOption, InvalidArchive, ConcurrentCommit):
            raise
        except SparkJobError as failure:  # it does not answer, or went away while it was read
            if options.once or common.ended(spark):
                raise
            say(f"{failure}; again with the next round")
        else:
            sums["records"] += told.records
            sums["quarantined"] += told.quarantined
            sums["files"] += told.files
            sums["offsets_gone_before"] += sum(gap.end - gap.start for gap in told.gaps)
            _print_result(told, time.monotonic() - began_s)
            unread.say(told.unread)
            if told.left:
                continue
        if options.once:
            break
        time.sleep(max(0.0, options.every - (time.monotonic() - began_s)))
    common.result({**sums, "unread": unread.as_json()})
    return UnreadableTopic.exit_code if unread else 0


def _round(options: Namespace, source: KafkaCluster) -> IngestResult:
    archive = Archive.create(options.to, source.cluster_id())  # each time: another cluster may answer there
    return run_round(archive, source, options.topics, options.round, time.time_ns() // 1_000_000)


def _print_result(told: IngestResult, took_s: float) -> None:
    if told.records:
        say(
            f"{told.records:,} records in {told.files} files, {took_s:.1f} s"
            + (f"; {told.quarantined:,} of them in quarantine" if told.quarantined else "")
            + (f"; {told.left:,} offsets wait" if told.left else "")
        )
    for gap in told.gaps:
        at = gap.partition
        say(
            f"{at.topic} [{at.number}]: offsets {gap.start:,} to {gap.end - 1:,} were deleted"
            " before they were archived"
        )
