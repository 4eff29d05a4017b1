"""`python -m spark size`: `spark.sizing`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from app.archive.errors import BadOption, InvalidArchive, SparkJobError, Unreachable
from app.archive.log import Archive
from app.archive.reader import ArchiveQuery, ArchiveReader
from app.controllog.topics import ControlTopics
from app.sizing.forecasts import HOUR_MS, HOURS_A_WEEK, MOST_HOURS, Record, iso
from app.sizing.recommendation import SizingRules
from spark.archive.frames import read_files
from spark.dashboard import daily, decode, frames, people
from spark.dashboard.store import LOADS, files_of, stored
from spark.jobs import common
from spark.jobs.report import replace
from spark.progress import say, watching
from spark.schemas import RECORD
from spark.sizing import compare, publish
from spark.sizing.advice import Prices
from spark.sizing.history import LOAD, left_out_words
from spark.sizing.report import SizingQuestion, size, tables
from spark.sizing.scenarios import Scenario

DESCRIPTION = """\
Forecasts what every job will take (hour of the week x trend, see spark/sizing), and says how many workers and
partitions that needs, by the placement that the controller uses; what it costs; and what if a region came, a
topic grew, or a zone were lost. Says how good its forecast would have been in the last week, and what each
past week would have needed, as it was and what if. Loads come from the store of `dashboard`, from archives of
heartbeats, or from Parquet files with the columns of the store's loads and `region`.

With --publish each region's forecast, hour by hour, goes to the topic switchyard-<region>-forecast of its
control cluster: its workers read it, and recommend at least what this hour and the coming one are forecast to
need. With --compare nothing is forecast: what was published is compared with what was measured since.
"""
EXAMPLES = """\
examples:
  python -m spark size --from-store /var/lib/dash --price-worker-hour 0.12 --price-gb 0.02
  python -m spark size --from-store /var/lib/dash --double orders --add-region east --lose-zone 3
  python -m spark size --archive east=/var/lib/archive --weeks 4 --percentile 0.99
  python -m spark size --from-store /var/lib/dash --region east=127.0.0.1:9092 --publish
  python -m spark size --from-store /var/lib/dash --region east=127.0.0.1:9092 --compare --csv hours.csv
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
    parser.add_argument(
        "--region",
        action="append",
        default=[],
        type=common.region,
        metavar="NAME=HOST:PORT,...",
        help="a region and the brokers of its control cluster, to publish or compare; again for each region",
    )
    parser.add_argument(
        "--command-config", type=Path, metavar="FILE", help="properties of a Kafka client, for all regions"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--publish", action="store_true", help="write the forecasts to the regions' topics, too"
    )
    what.add_argument("--compare", action="store_true", help="past forecasts with what happened")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="with --compare: its hours, a line each")
    common.add_session(parser)


def run(options: Namespace) -> int:
    """Reads the loads, sizes, tells; or compares."""
    asked = _question(options)
    if options.compare:
        return _compare(options, asked)
    spark = common.session("size", options)
    with watching(spark, "Sizing"), common.spark_failures("Sizing"):
        read = _read(spark, options)
        found = size(read.loads, asked, read.owners)
    say(tables(found))
    _print_left_out(found, read.bad)
    _print_report(options, found)
    return _publish(spark, options, found) if options.publish else 0


def _print_left_out(found: dict[str, Any], bad: Bad) -> None:
    """Says what was left out of the history, and adds heartbeats that could not be read to the document."""
    found["left_out"]["heartbeats"] = bad._asdict()
    for line in left_out_words(found["left_out"]):
        say(line)
    if bad.records:
        say(f"{bad.records:,} archived heartbeats cannot be used, and are left out; one: {bad.why}")


def _print_report(options: Namespace, found: Mapping[str, Any]) -> None:
    if options.json:
        replace(options.json, json.dumps(found, indent=1))
    else:
        sys.stdout.write(json.dumps(found) + "\n")


def _publish(spark: SparkSession, options: Namespace, found: Mapping[str, Any]) -> int:
    """Every region's records into its topic; one that is away is told, and the others go on."""
    records = msgspec.convert(found["forecasts"], list[Record])
    if found["refused"]["records"]:
        told = f"{found['refused']['records']:,} forecasts are not published, as no worker would take them"
        say(f"{told}; the first: {found['refused']['first'][0]}")
    away = 0
    for region, bootstrap in options.region:
        its = [record for record in records if record.region == region]
        if not its:
            say(f"{region}: no load of it is known, nothing is published")
            continue
        target = common.cluster(spark, bootstrap, options.command_config)
        try:
            with common.spark_failures(f"Publishing to {region}"):
                before = publish.kept(target, region)
                rows = list(publish.changes(its, before, found["made_ms"]))
                publish.write(spark, target, region, rows)
        except SparkJobError as failure:
            away += 1
            say(f"{region}: nothing is published: {failure}")
            continue
        say(_published(region, its, before, len(rows) - len(its)))
    return Unreachable.exit_code if away else 0


def _published(region: str, its: Sequence[Record], before: publish.PublishedRecords, taken_back: int) -> str:
    hours = max(record.from_hour + record.hours for record in its)
    told = f"{region}: {len(its)} forecasts published, from {iso(its[0].from_hour * HOUR_MS)}"
    told += f" to {iso(hours * HOUR_MS)}"
    if taken_back:
        told += f"; {taken_back} old ones taken back"
    if any(record.error is None for record in its):
        told += "; some will not count: less than two weeks of history, their error is not known"
    return told + _bad(before)


def _bad(kept: publish.PublishedRecords) -> str:
    return f"; {kept.bad} records of its topic are no forecasts" if kept.bad else ""


def _compare(options: Namespace, question: SizingQuestion) -> int:
    """What was published with what was measured since."""
    spark = common.session("size", options)
    records: list[Record] = []
    with watching(spark, "Comparing"), common.spark_failures("Comparing"):
        for region, bootstrap in options.region:
            kept = publish.kept(common.cluster(spark, bootstrap, options.command_config), region)
            its = [record for record in kept.records.values() if record.region == region]
            say(f"{region}: {len(its)} published forecasts{_bad(kept)}")
            records += its
        read = _read(spark, options)
        price = question.prices.worker_hour
        found = compare.compare(read.loads, records, time.time_ns() // 1_000_000, question.rules, price)
    say(compare.tables(found))
    _print_left_out(found, read.bad)
    if options.csv:
        replace(options.csv, compare.csv_text(found))
    if options.json or not options.csv:
        _print_report(options, found)
    return 0


def _question(options: Namespace) -> SizingQuestion:
    if not (options.from_store or options.archive or options.loads):
        raise BadOption("give --from-store, --archive or --loads: where the history of loads is")
    if options.spare < 0:
        raise BadOption(f"--spare {options.spare}: give 0 or more")
    if options.lose_zone is not None and options.lose_zone < 2:
        raise BadOption(f"--lose-zone {options.lose_zone}: of how many zones, 2 or more")
    if min(options.price_worker_hour, options.price_gb) < 0:
        raise BadOption("--price-worker-hour, --price-gb: a price is 0 or more")
    _check_regions(options)
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
    now_ms = time.time_ns() // 1_000_000
    return SizingQuestion(
        scenarios,
        weeks=options.weeks,
        percentile=options.percentile,
        rules=SizingRules(spare_workers=options.spare),
        prices=Prices(options.price_worker_hour, options.price_gb),
        now_ms=now_ms,
        publish_at_ms=now_ms if options.publish else None,
    )


def _check_regions(options: Namespace) -> None:
    wants = "--publish" if options.publish else "--compare" if options.compare else ""
    if wants and not options.region:
        raise BadOption(f"{wants} needs --region NAME=HOST:PORT, the brokers of its control cluster")
    if options.region and not wants:
        raise BadOption("--region: say --publish or --compare, which of them is to be done there")
    if len(dict(options.region)) < len(options.region):
        raise BadOption("--region: a region is given twice")
    if options.csv and not options.compare:
        raise BadOption("--csv is of --compare; the sizes are in --json")
    if options.publish and options.weeks * HOURS_A_WEEK > MOST_HOURS:
        raise BadOption(f"--weeks {options.weeks}: with --publish at most {MOST_HOURS // HOURS_A_WEEK}")


class Bad(NamedTuple):
    """Heartbeats that cannot be used, and why one of them cannot."""

    records: int = 0
    why: str = ""


class Read(NamedTuple):
    """`LOAD` of all that was named, owners by region and name, and what could not be read."""

    loads: DataFrame
    owners: dict[tuple[str, str], str]
    bad: Bad


def _read(spark: SparkSession, options: Namespace) -> Read:
    """All that was named."""
    found: list[DataFrame] = []
    owners: dict[tuple[str, str], str] = {}
    bad = Bad()
    if options.from_store:
        stores = daily.open_stores(options.from_store)
        for region, (archive, state) in stores.items():
            loads = stored(spark, archive, files_of(state, LOADS), LOADS)
            found.append(loads.withColumn("region", f.lit(region)))
        rows = daily.entries(spark, stores, [decode.WORKLOADS, decode.ROUTES]).collect()
        tables_ = people.SmallTables(
            (row["region"], row["table"], row["key"], bytes(row["value"])) for row in rows
        )
        owners = {at: people.owner_of(event) for at, event in (tables_.workloads | tables_.routes).items()}
    for region, folder in options.archive:
        reader = ArchiveReader(Archive.open(folder))
        topic = ControlTopics(region).heartbeats.name
        files = reader.files(ArchiveQuery(topic, topic_id=reader.lineage(topic, None)))
        paths = [str(reader.archive.root / file.path) for file in files]
        if paths:
            records = read_files(spark, paths).withColumn("topic", f.lit(topic)).select(RECORD.names)
            found.append(frames.loads(records).withColumn("region", f.lit(region)))
            bad = _with_bad(bad, region, records)
    if options.loads:
        found.append(spark.read.schema(LOAD).parquet(str(options.loads)))
    if not found:
        raise InvalidArchive("no heartbeats are archived there")
    loads = found[0].select(LOAD.names)
    for one in found[1:]:
        loads = loads.union(one.select(LOAD.names))
    return Read(loads, owners, bad)


def _with_bad(before: Bad, region: str, records: DataFrame) -> Bad:
    """With the bad ones of a region's heartbeats."""
    told = frames.bad_heartbeats(records).agg(f.count("*").alias("records"), f.max("reason").alias("why"))
    (one,) = told.collect()
    return Bad(before.records + one["records"], f"{region}: {one['why']}") if one["records"] else before


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
