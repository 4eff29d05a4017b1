"""`python -m spark size`: `spark.sizing`."""

from __future__ import annotations

import argparse
import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from app.core.sizing import SizingRules
from app.topics import ControlTopics
from spark.archive.frames import read_files
from spark.archive.log import Archive
from spark.archive.reader import Query, Reader
from spark.dashboard import daily, decode, frames, people
from spark.dashboard.store import LOADS, files_of, stored
from spark.errors import BadOption, NotFit
from spark.jobs import common
from spark.jobs.report import replace
from spark.progress import say, watching
from spark.schemas import RECORD
from spark.sizing.advice import Prices
from spark.sizing.history import LOAD
from spark.sizing.report import Asked, size, tables
from spark.sizing.scenarios import Scenario

DESCRIPTION = """\
Forecasts what every job will take (hour of the week x trend, see spark/sizing), and says how many workers and
partitions that needs, by the placement that the controller uses; what it costs; and what if a region came, a
topic grew, or a zone were lost. Says how good its forecast would have been in the last week, and what each
past week would have needed. Loads come from the store of `dashboard`, from archives of heartbeats, or from
Parquet files with the columns of the store's loads and `region`.
"""
EXAMPLES = """\
examples:
  python -m spark size --from-store /var/lib/dash --price-worker-hour 0.12 --price-gb 0.02
  python -m spark size --from-store /var/lib/dash --double orders --add-region east --lose-zone 3
  python -m spark size --archive east=/var/lib/archive --weeks 4 --percentile 0.99
"""


def add_arguments(parser: ArgumentParser) -> None:
    """The job's options."""
    parser.add_argument("--from-store", type=Path, metavar="DIR", help="what `dashboard --to` has made")
    parser.add_argument(
        "--archive",
        action="append",
        default=[],
        type=_archive,
        metavar="REGION=DIR",
        help="of its heartbeats",
    )
    parser.add_argument("--loads", type=Path, metavar="DIR", help="Parquet files")
    parser.add_argument(
        "--weeks", type=common.positive, default=1, help="to forecast (default: 1)", metavar="N"
    )
    parser.add_argument(
        "--percentile", type=_share, default=0.95, metavar="0.95", help="of the margin above the forecast"
    )
    parser.add_argument(
        "--spare", type=int, default=1, metavar="N", help="workers that may be lost at once (default: 1)"
    )
    parser.add_argument("--double", action="append", default=[], metavar="TOPIC[*FACTOR]")
    parser.add_argument("--add-region", action="append", default=[], metavar="LIKE")
    parser.add_argument("--lose-zone", type=int, metavar="ZONES", help="of so many zones one is lost")
    parser.add_argument("--price-worker-hour", type=float, default=0.0, metavar="PRICE")
    parser.add_argument("--price-gb", type=float, default=0.0, metavar="PRICE", help="over the network")
    parser.add_argument("--json", type=Path, metavar="FILE", help="instead of on standard output")
    common.add_session(parser)


def run(options: Namespace) -> int:
    """Reads the loads, sizes, tells."""
    asked = _asked(options)
    spark = common.session("size", options)
    with watching(spark, "Sizing"), common.spark_failures("Sizing"):
        loads, owners = _read(spark, options)
        found = size(loads, asked, owners)
    say(tables(found))
    if options.json:
        replace(options.json, json.dumps(found, indent=1))
    else:
        sys.stdout.write(json.dumps(found) + "\n")
    return 0


def _asked(options: Namespace) -> Asked:
    if not (options.from_store or options.archive or options.loads):
        raise BadOption("give --from-store, --archive or --loads: where the history of loads is")
    if options.spare < 0:
        raise BadOption(f"--spare {options.spare}: give 0 or more")
    if options.lose_zone is not None and options.lose_zone < 2:
        raise BadOption(f"--lose-zone {options.lose_zone}: of how many zones, 2 or more")
    if min(options.price_worker_hour, options.price_gb) < 0:
        raise BadOption("--price-worker-hour, --price-gb: a price is 0 or more")
    scenarios = [Scenario("as it is")]
    for given in options.double:
        topic, star, by = given.partition("*")
        try:
            factor = float(by) if star else 2.0
        except ValueError:
            factor = -1.0
        if not 0 < factor <= 1000:
            raise BadOption(f"--double {given}: give TOPIC or TOPIC*FACTOR, a factor above 0, at most 1000")
        scenarios.append(Scenario(f"{topic} x {factor:g}", "topic", topic, factor))
    scenarios += [Scenario(f"a region like {like} more", "region", like) for like in options.add_region]
    if options.lose_zone:
        scenarios.append(Scenario(f"one of {options.lose_zone} zones lost", "zone", zones=options.lose_zone))
    return Asked(
        scenarios,
        weeks=options.weeks,
        percentile=options.percentile,
        rules=SizingRules(spare_workers=options.spare),
        prices=Prices(options.price_worker_hour, options.price_gb),
    )


def _read(spark: SparkSession, options: Namespace) -> tuple[DataFrame, dict[tuple[str, str], str]]:
    """`LOAD` of all that was named, and owners by region and name."""
    found: list[DataFrame] = []
    owners: dict[tuple[str, str], str] = {}
    if options.from_store:
        stores = daily.open_stores(options.from_store)
        for region, (archive, state) in stores.items():
            loads = stored(spark, archive, files_of(state, LOADS), LOADS)
            found.append(loads.withColumn("region", f.lit(region)))
        rows = daily.entries(spark, stores, [decode.WORKLOADS, decode.ROUTES]).collect()
        tables_ = people.Tables(
            (row["region"], row["table"], row["key"], bytes(row["value"])) for row in rows
        )
        owners = {at: people.owner_of(event) for at, event in (tables_.workloads | tables_.routes).items()}
    for region, folder in options.archive:
        reader = Reader(Archive.open(folder))
        topic = ControlTopics(region).heartbeats.name
        files = reader.files(Query(topic, topic_id=reader.lineage(topic, None)))
        paths = [str(reader.archive.root / file.path) for file in files]
        if paths:
            records = read_files(spark, paths).withColumn("topic", f.lit(topic)).select(RECORD.names)
            found.append(frames.loads(records).withColumn("region", f.lit(region)))
    if options.loads:
        found.append(spark.read.schema(LOAD).parquet(str(options.loads)))
    if not found:
        raise NotFit("no heartbeats are archived there")
    loads = found[0].select(LOAD.names)
    for one in found[1:]:
        loads = loads.union(one.select(LOAD.names))
    return loads, owners


def _archive(given: str) -> tuple[str, Path]:
    region, equals, folder = given.partition("=")
    if not equals or not region or not folder:
        msg = f"{given!r} is not REGION=DIR"
        raise argparse.ArgumentTypeError(msg)
    return region, Path(folder)


def _share(given: str) -> float:
    try:
        share = float(given)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        msg = f"{given!r} is no percentile: give a share above 0 and at most 1, as 0.95"
        raise argparse.ArgumentTypeError(msg)
    return share
