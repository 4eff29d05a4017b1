"""`python -m spark dashboard` runs rounds of `spark.dashboard.fold`, then `spark.dashboard.daily`."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pyspark.sql import SparkSession

from app.archive.errors import BadOption, InvalidArchive, SparkJobError, Unreachable, UnreadableTopic
from app.archive.log import Archive
from app.audit.folds.tier import PlanBounds
from spark.dashboard.daily import GLOBAL, Stores, bring_up, open_stores
from spark.dashboard.fold import fold_round
from spark.dashboard.store import tidy
from spark.jobs import common
from spark.jvm import has_ended
from spark.kafka import KafkaCluster
from spark.progress import say, watching

DESCRIPTION = """\
Stores the tables of all regions (audit windows and tiers, audit plans, workloads, routes, assignments,
trackers, checkpoints, activity), their incidents, and the loads in heartbeats, exactly once: a job that is
killed and started again continues after the last committed round. From them it computes the traffic by hour
and a verdict for every window, as Parquet files; `python -m spark report` shows them. A record that cannot
be used goes to the quarantine with its reason, and is counted. If a region does not answer, the job reports
it and continues with the others; --once ends with exit code 7. The job names each topic, partition or range
of offsets that it cannot read, and reads the others; --once ends with exit code 9. Replaced files are
deleted an hour later; run a report again if it takes longer.
"""
EXAMPLES = """\
examples:
  python -m spark dashboard --region east=127.0.0.1:9092 --region west=127.0.0.1:9095 \\
      --to /var/lib/dash --once
  python -m spark dashboard --region east=10.0.0.1:9092 --to /var/lib/dash --every 5m

Give each region's control cluster, which has the topics switchyard-<region>-...
"""
ROUND_RECORDS = 1_000_000


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--region",
        action="append",
        required=True,
        type=common.region,
        metavar="NAME=HOST:PORT,...",
        help="a region and the brokers of its control cluster; repeat for each region",
    )
    parser.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="a Kafka client's properties file, for all regions",
    )
    parser.add_argument("--to", required=True, type=Path, metavar="DIR", help="the store of all regions")
    parser.add_argument("--once", action="store_true", help="read the present records, and end")
    common.add_every(parser)
    common.add_round(parser, ROUND_RECORDS)
    parser.add_argument(
        "--silence",
        type=common.seconds,
        default=PlanBounds().silence_ms / 1000,
        metavar="2m",
        help="a source of audit reports is silent after this time without one (default: 2m)",
    )
    common.add_session(parser)


def run(options: Namespace) -> int:
    regions = dict(options.region)
    if len(regions) < len(options.region):
        raise BadOption("--region: give each region once")
    if GLOBAL in regions:
        raise BadOption(
            f"--region {GLOBAL}=...: the store uses that name for the results of all regions; give another"
        )
    spark = common.session("dashboard", options)
    bounds = PlanBounds(silence_ms=int(options.silence * 1000))
    sums = {"offsets": 0, "rows": 0, "quarantined": 0, "offsets_gone_before": 0}
    away: dict[str, str] = {}
    unread = common.UnreadRanges()
    sources = {
        region: common.cluster(spark, bootstrap, options.command_config)
        for region, bootstrap in regions.items()
    }
    while True:
        began_s = time.monotonic()
        for region, source in sources.items():
            try:
                with watching(spark, f"Reading {region}"):
                    _catch_up(options, region, source, sums, unread)
                away.pop(region, None)
            except (BadOption, InvalidArchive):
                raise
            except SparkJobError as failure:  # the region does not answer, or stopped during the round
                if has_ended(spark):
                    raise
                away[region] = str(failure)
                say(f"{region} could not be read, and the other regions continue: {failure}")
        dates: list[str] = []
        if len(away) < len(regions):
            try:
                dates = _bring_up(spark, options.to, bounds)
            except (BadOption, InvalidArchive):
                raise
            except SparkJobError as failure:
                if options.once or has_ended(spark):
                    raise
                say(f"{failure}; the next round retries")
        say(f"Computed dates: {', '.join(dates) or 'none'}; {time.monotonic() - began_s:.1f} s")
        if options.once:
            break
        time.sleep(max(0.0, options.every - (time.monotonic() - began_s)))
    common.result({**sums, "dates": dates, "away": away, "unread": unread.as_json()})
    if away:
        return Unreachable.exit_code
    return UnreadableTopic.exit_code if unread else 0


def _catch_up(
    options: Namespace,
    region: str,
    source: KafkaCluster,
    sums: dict[str, int],
    unread: common.UnreadRanges,
) -> None:
    archive = Archive.create(options.to / region, source.cluster_id())
    while True:
        folded = common.tried(
            lambda: fold_round(archive, source, region, options.round, _now_ms()), Unreachable
        )
        sums["offsets"] += folded.offsets
        sums["rows"] += folded.rows
        sums["quarantined"] += folded.quarantined
        sums["offsets_gone_before"] += sum(gap.end - gap.start for gap in folded.gaps)
        if folded.offsets:
            say(f"{region}: {folded.offsets:,} offsets; {folded.quarantined:,} records are quarantined")
        unread.say(folded.unread, region)
        if not folded.left:
            return


def _bring_up(spark: SparkSession, root: Path, bounds: PlanBounds) -> list[str]:
    stores, dates = common.tried(lambda: _compared(spark, root, bounds), what="Comparing tiers failed")
    for archive in (Archive.open(root / GLOBAL), *(archive for archive, _ in stores.values())):
        tidy(archive, _now_ms())
    return dates


def _compared(spark: SparkSession, root: Path, bounds: PlanBounds) -> tuple[Stores, list[str]]:
    with watching(spark, "Comparing tiers"):
        stores = open_stores(root)  # at each try, because another job may have committed
        return stores, bring_up(spark, root, stores, _now_ms(), bounds)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
