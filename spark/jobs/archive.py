"""`python -m spark archive` runs rounds of `spark.archive.ingest`."""

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
from spark.jvm import has_ended
from spark.kafka import KafkaCluster
from spark.progress import say, watching

DESCRIPTION = """\
Archives topics as Parquet files by topic, date and hour of the records' timestamps (UTC), exactly once: a
job that is killed and started again continues after the last committed round. A late record goes to its
old hour. Records of open or aborted transactions are left out. A record without a usable timestamp (none,
before 1970, or over a day in the future, such as nanoseconds) goes to the archive's quarantine, and is
counted. If the cluster does not answer, the job reports it and retries in the next round; --once ends with
exit code 7. The job names each topic, partition or range of offsets that it cannot read, archives the
others, and retries in every round; --once ends with exit code 9.
"""
EXAMPLES = """\
examples:
  python -m spark archive --bootstrap 127.0.0.1:9092 --topics orders --to /var/lib/archive --once
  python -m spark archive --bootstrap 127.0.0.1:9092 --topics 'orders|payments\\..*' \\
      --to /var/lib/archive --every 1m
"""
ROUND_RECORDS = 5_000_000  # a kill repeats one round, and new records wait for its end


def add_arguments(parser: ArgumentParser) -> None:
    common.add_cluster(parser)
    parser.add_argument(
        "--topics", required=True, metavar="REGEX", help="archive topics whose whole name matches"
    )
    parser.add_argument(
        "--to", required=True, type=Path, metavar="DIR", help="the archive; each cluster needs its own"
    )
    parser.add_argument("--once", action="store_true", help="archive the present records, and end")
    common.add_every(parser)
    common.add_round(parser, ROUND_RECORDS)
    common.add_session(parser)


def run(options: Namespace) -> int:
    spark = common.session("archive", options)
    source = common.cluster(spark, options.bootstrap, options.command_config)
    sums = {"records": 0, "quarantined": 0, "files": 0, "offsets_gone_before": 0}
    unread = common.UnreadRanges()
    while True:
        began_s = time.monotonic()
        try:
            with watching(spark, "Archiving"):
                done = common.tried(lambda: _round(options, source), Unreachable)
        except (BadOption, InvalidArchive, ConcurrentCommit):
            raise
        except SparkJobError as failure:  # the cluster does not answer, or stopped during the round
            if options.once or has_ended(spark):
                raise
            say(f"{failure}; the next round retries")
        else:
            sums["records"] += done.records
            sums["quarantined"] += done.quarantined
            sums["files"] += done.files
            sums["offsets_gone_before"] += sum(gap.end - gap.start for gap in done.gaps)
            _print_result(done, time.monotonic() - began_s)
            unread.say(done.unread)
            if done.left:
                continue
        if options.once:
            break
        time.sleep(max(0.0, options.every - (time.monotonic() - began_s)))
    common.result({**sums, "unread": unread.as_json()})
    return UnreadableTopic.exit_code if unread else 0


def _round(options: Namespace, source: KafkaCluster) -> IngestResult:
    archive = Archive.create(options.to, source.cluster_id())  # each round checks: another cluster may answer
    return run_round(archive, source, options.topics, options.round, time.time_ns() // 1_000_000)


def _print_result(done: IngestResult, took_s: float) -> None:
    if done.records:
        say(
            f"{done.records:,} records in {done.files} files, {took_s:.1f} s"
            + (f"; {done.quarantined:,} of them are quarantined" if done.quarantined else "")
            + (f"; {done.left:,} offsets are left" if done.left else "")
        )
    for gap in done.gaps:
        at = gap.partition
        say(
            f"{at.topic} [{at.number}]: the topic deleted offsets {gap.start:,} to {gap.end - 1:,}"
            " before they were archived"
        )
