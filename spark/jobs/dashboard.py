"""`python -m spark dashboard`: rounds of `spark.dashboard.fold`, then `spark.dashboard.daily`."""

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
from spark.kafka import KafkaCluster
from spark.progress import say, watching

DESCRIPTION = """\
Keeps what the tables of all regions say (audit windows and tiers, workloads, routes, assignments, trackers,
checkpoints, activity), their incidents, and what heartbeats say of loads, exactly once: a job that is killed
and started again goes on where the last complete round ended. From that it makes traffic by hour and a
verdict for every window, as Parquet files; `python -m spark report` shows them. A record that cannot be used
is kept in the quarantine with its reason, and counted. A region that does not answer is told; the others go
on. A topic, partition or offsets that cannot be read are named, and hold up no other; --once ends then with
exit code 9. Files that were replaced are deleted an hour later: a report that reads for longer than that is
to be made anew.
"""
EXAMPLES = """\
examples:
  python -m spark dashboard --region east=127.0.0.1:9092 --region west=127.0.0.1:9095 \\
      --to /var/lib/dash --once
  python -m spark dashboard --region east=10.0.0.1:9092 --to /var/lib/dash --every 5m

Give each region's control cluster: where its topics switchyard-<region>-... are.
"""
ROUND_RECORDS = 1_000_000


def add_arguments(parser: ArgumentParser) -> None:
    """The job's options."""
    parser.add_argument(
        "--region",
        action="append",
        required=True,
        type=common.region,
        metavar="NAME=HOST:PORT,...",
        help="a region and the brokers of its control cluster; again for each region",
    )
    parser.add_argument(
        "--command-config", type=Path, metavar="FILE", help="properties of a Kafka client, for all regions"
    )
    parser.add_argument("--to", required=True, type=Path, metavar="DIR", help="the store, of all regions")
    parser.add_argument("--once", action="store_true", help="take in what is there now, and end")
    parser.add_argument("--every", type=common.seconds, default=60.0, metavar="60s", help="(default: 60s)")
    common.add_round(parser, ROUND_RECORDS)
    parser.add_argument(
        "--silence",
        type=common.seconds,
        default=PlanBounds().silence_ms / 1000,
        metavar="2m",
        help="a source of audit reports that was not heard for so long is silent (default: 2m)",
    )
    common.add_session(parser)


def run(options: Namespace) -> int:
    """Rounds until there is no more, or for ever."""
    regions = dict(options.region)
    if len(regions) < len(options.region):
        raise BadOption("--region: a region is given twice")
    if GLOBAL in regions:
        raise BadOption(f"--region {GLOBAL}=...: that name is taken by what all regions make together")
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
            except SparkJobError as failure:  # it does not answer, or went away while it was read
                if common.ended(spark):
                    raise
                away[region] = str(failure)
                say(f"{region} could not be read, the others go on: {failure}")
        dates: list[str] = []
        if len(away) < len(regions):
            try:
                dates = _bring_up(spark, options.to, bounds)
            except (BadOption, InvalidArchive):
                raise
            except SparkJobError as failure:
                if options.once or common.ended(spark):
                    raise
                say(f"{failure}; again with the next round")
        say(f"Brought up: {', '.join(dates) or 'no date'}; {time.monotonic() - began_s:.1f} s")
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
        told = common.tried(
            lambda: fold_round(archive, source, region, options.round, _now_ms()), Unreachable
        )
        sums["offsets"] += told.offsets
        sums["rows"] += told.rows
        sums["quarantined"] += told.quarantined
        sums["offsets_gone_before"] += sum(gap.end - gap.start for gap in told.gaps)
        if told.offsets:
            say(f"{region}: {told.offsets:,} offsets; {told.quarantined:,} records in quarantine")
        unread.say(told.unread, region)
        if not told.left:
            return


def _bring_up(spark: SparkSession, root: Path, bounds: PlanBounds) -> list[str]:
    stores, dates = common.tried(lambda: _compared(spark, root, bounds), what="Comparing tiers failed")
    for archive in (Archive.open(root / GLOBAL), *(archive for archive, _ in stores.values())):
        tidy(archive, _now_ms())
    return dates


def _compared(spark: SparkSession, root: Path, bounds: PlanBounds) -> tuple[Stores, list[str]]:
    with watching(spark, "Comparing tiers"):
        stores = open_stores(root)  # with each try: what another job has made meanwhile is looked at anew
        return stores, bring_up(spark, root, stores, _now_ms(), bounds)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
