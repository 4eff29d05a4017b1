"""`python -m spark verify topic|archive` runs `spark.verify.compare`."""

from __future__ import annotations

import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as f

from app.archive.errors import BadOption, InvalidArchive, SparkJobError
from app.archive.layout import ArchiveFile
from app.archive.log import Archive
from app.archive.reader import ArchiveQuery, ArchiveReader
from app.dev.yard.jars import switchyard_home
from spark.archive.frames import read_files
from spark.files import read_parquet_at
from spark.jobs import common
from spark.kafka import KafkaCluster
from spark.progress import say, watching
from spark.reading import doubts_of_all, read_whole, seen
from spark.schemas import FILE, FINDING, PAIR
from spark.topics import KafkaTopic, Range
from spark.verify.compare import between, counted, differing, judged, match, met, without_headers

DESCRIPTION = """\
Compares record by record: a topic with its copy (`topic`: missing, doubled, foreign, reordered), or with its
archive (`archive`: missing, doubled, foreign, altered). It compares the offsets that exist when the job
starts: with an archive only those that the archive has reached; with a copy, a record that is not copied yet
is missing. It prints how many records were compared, the findings by kind, and examples; --findings keeps
all findings as Parquet files. Exit code 0: no difference; 8: missing or altered records; 1: other
differences.
"""
EXAMPLES = """\
examples:
  python -m spark verify topic --bootstrap 127.0.0.1:9092 --topic orders \\
      --copy-bootstrap 127.0.0.1:9094 --copy orders
  python -m spark verify archive --bootstrap 127.0.0.1:9092 --topic orders --archive /var/lib/archive
"""
EXIT_DIFFERS, EXIT_MISSING = 1, 8
EXAMPLES_SHOWN = 20

Write = Callable[[DataFrame], None]  # writes `FINDING`s, and replaces those of an earlier try


def add_arguments(parser: ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="against", required=True, metavar="topic|archive")
    topic = kinds.add_parser("topic", help="compare with a copy that has offsets of its own")
    archive = kinds.add_parser("archive", help="compare with its archive")
    for one in (topic, archive):
        common.add_cluster(one)
        one.add_argument("--topic", required=True)
        one.add_argument(
            "--findings", type=Path, metavar="DIR", help="keep the findings there (default: only print sums)"
        )
        common.add_session(one)
    common.add_cluster(topic, "copy")
    topic.add_argument("--copy", required=True, metavar="TOPIC")
    topic.add_argument(
        "--from", dest="from_ms", type=common.time_ms, metavar="TIME", help="the earliest timestamp"
    )
    topic.add_argument(
        "--to", dest="to_ms", type=common.time_ms, metavar="TIME", help="the end of timestamps, exclusive"
    )
    topic.add_argument(
        "--ignore-header",
        action="append",
        default=[],
        metavar="NAME",
        help="leave out a header that a route adds",
    )
    archive.add_argument("--archive", required=True, type=Path, metavar="DIR")


def run(options: Namespace) -> int:
    spark = common.session("verify", options)
    folder = options.findings or switchyard_home() / "spark" / "findings" / uuid4().hex[:12]
    if existing := [name for name in ("findings", "pairs") if (folder / name).exists()]:
        raise BadOption(f"--findings {folder}: it has {existing[0]} already; name another folder")
    try:
        return _compare(spark, options, folder)
    finally:
        if options.findings is None:  # nothing else would delete millions of findings
            shutil.rmtree(folder, ignore_errors=True)


def _compare(spark: SparkSession, options: Namespace, folder: Path) -> int:
    with watching(spark, "Comparing"), common.spark_failures("Comparing"):
        compare = _topic if options.against == "topic" else _archive
        try:
            written = Observation()

            def write(found: DataFrame) -> None:
                nonlocal written
                written = Observation()
                seen = found.observe(written, f.count("*").alias("records"))
                seen.write.parquet(str(folder / "findings"), mode="overwrite")

            records = compare(spark, options, folder, write)
        except SparkJobError:  # findings from an incomplete side are wrong
            shutil.rmtree(folder / "findings", ignore_errors=True)
            raise
        finally:
            shutil.rmtree(folder / "pairs", ignore_errors=True)
        findings = read_parquet_at(spark, FINDING, [folder / "findings"])
        kinds = {row["kind"]: row["records"] for row in _kinds(findings)}
        _check_same(folder / "findings", written.get["records"], sum(kinds.values()))
        rows = (
            findings.orderBy("kind", "partition", "source_offset", "copy_offset")
            .limit(EXAMPLES_SHOWN)
            .collect()
        )
    summary = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items())) or "no difference"
    say(
        f"{options.topic}, {records:,} records: {summary}."
        + (f" Findings: {folder}" if options.findings else "")
    )
    common.result(
        {
            "topic": options.topic,
            "records": records,
            "findings": kinds,
            "examples": [row.asDict() for row in rows],
            "folder": str(folder) if options.findings else None,
        }
    )
    if kinds.keys() & {"missing", "altered"}:
        return EXIT_MISSING
    return EXIT_DIFFERS if kinds else 0


def _kinds(findings: DataFrame) -> list[dict[str, int]]:
    sums = counted(findings).groupBy("kind").agg(f.sum("records").alias("records"))
    return [row.asDict() for row in sums.collect()]


def _topic(spark: SparkSession, options: Namespace, folder: Path, write: Write) -> int:
    """Compares by content. Writes pairs of all records with their copies, so that both topics are read once.
    Returns the number of the topic's records.

    The true number of records in a topic is unknown before reading. So both sides are only checked for none,
    or more than their offsets allow.
    """
    ours = common.cluster(spark, options.bootstrap, options.command_config)
    theirs = common.cluster(spark, options.copy_bootstrap, options.copy_command_config)
    source, copy = ours.topic(options.topic), theirs.topic(options.copy)
    lanes = "partition" if len(source.partitions) == len(copy.partitions) else "key"
    sums = [f.count(name).alias(name) for name in ("source_offset", "copy_offset")]

    ranges = _whole(source), _whole(copy)

    def paired(*records: DataFrame) -> list[dict[str, int | None]]:
        """Writes the pairs; returns the observations of each side."""
        observed, written = (Observation(), Observation()), Observation()
        sides = (
            without_headers(
                between(one.observe(its, *seen()), options.from_ms, options.to_ms), options.ignore_header
            )
            for one, its in zip(records, observed, strict=True)
        )
        pairs = match(*sides, lanes=lanes).observe(written, *sums)
        pairs.write.parquet(str(folder / "pairs"), mode="overwrite")
        _check_same(folder / "pairs", written.get, _sums(spark, folder, sums))
        return [one.get for one in observed]

    found = read_whole(
        ours,
        ranges[0],
        lambda our_records: read_whole(
            theirs,
            ranges[1],
            lambda their_records: paired(our_records, their_records),
            lambda found: doubts_of_all(ranges[1], found[1]),
        ),
        lambda found: doubts_of_all(ranges[0], found[0]),
    )
    held = _sums(spark, folder, sums)
    for cluster, its, one, records in zip((ours, theirs), ranges, found, held.values(), strict=True):
        check_topic(cluster, its, one["records"] or 0, records)
    write(judged(read_parquet_at(spark, PAIR, [folder / "pairs"])))
    return held["source_offset"]


def _sums(spark: SparkSession, folder: Path, sums: list[Column]) -> dict[str, int]:
    """Sums over the pairs that were written."""
    pairs = read_parquet_at(spark, PAIR, [folder / "pairs"])
    return {name: int(count) for name, count in pairs.agg(*sums).collect()[0].asDict().items()}


def _archive(spark: SparkSession, options: Namespace, _folder: Path, write: Write) -> int:
    """Compares by offset, and the number of archived records with the log. Returns the topic's records."""
    cluster = common.cluster(spark, options.bootstrap, options.command_config)
    topic = cluster.topic(options.topic)
    reader = ArchiveReader(Archive.open(options.archive))
    if reader.archive.cluster_id != cluster.cluster_id():
        raise InvalidArchive(
            f"{options.archive} is the archive of another cluster: {reader.archive.cluster_id}"
        )
    common_ranges = []
    for covered in reader.coverage(topic.name, topic.topic_id):
        bounds = topic.partitions[covered.partition]
        start, end = max(bounds.start, covered.reach.start), min(bounds.end, covered.reach.end)
        if start < end:
            common_ranges.append(Range(topic.name, covered.partition, start, end))
    files = reader.files(ArchiveQuery(topic.name, topic_id=topic.topic_id, quarantined=True))
    if not common_ranges or not files:
        raise InvalidArchive(
            f"{options.archive} and topic {topic.name} have no offsets in common: nothing to compare"
        )
    inside = f.lit(False)
    for one in common_ranges:
        inside |= (f.col("partition") == one.partition) & f.col("offset").between(one.start, one.end - 1)
    files = [file for file in files if _touches(file, common_ranges)]
    paths = [str(reader.archive.root / file.path) for file in files]
    copy = read_files(spark, paths) if paths else spark.createDataFrame([], FILE)

    def compared(records: DataFrame) -> dict[str, int | None]:
        """Writes the findings; returns the numbers of `records` and `copies`, and the first time."""
        found = Observation()  # after the shuffle, where a repeated task is not counted twice
        first = Observation()
        both = met(records.observe(first, seen()[1]), copy).observe(
            found, f.sum("sources").alias("records"), f.sum("copies").alias("copies")
        )
        write(differing(both.where(inside)))
        return {**first.get, **found.get}

    found = read_whole(cluster, common_ranges, compared, lambda found: doubts_of_all(common_ranges, found))
    records, copies = (found[name] or 0 for name in ("records", "copies"))
    check_archive(reader.archive, files, copies)
    check_topic(cluster, common_ranges, records, records)
    return records


def check_archive(archive: Archive, files: list[ArchiveFile], read: int) -> None:
    """Raises SparkJobError: The number of records read is not the number in the files."""
    held = sum(file.rows for file in files)
    if read != held:
        raise SparkJobError(
            f"read {read:,} of {held:,} records of {archive.root}: nothing was compared; run it again"
        )


def check_topic(cluster: KafkaCluster, ranges: list[Range], seen: int, records: int) -> None:
    """Checks the topic's numbers: `seen` records were read, `records` were compared.

    Raises:
        SparkJobError: Nothing was read though records exist, or more was compared than there are offsets.
    """
    most = sum(one.end - one.start for one in ranges)
    if records > most or (not seen and cluster.has_records(ranges)):
        raise SparkJobError(
            f"read {records:,} records of {ranges[0].topic}, which has up to {most:,}: nothing was compared; "
            "run it again"
        )


def _check_same(folder: Path, written: object, read: object) -> None:
    if written != read:
        raise SparkJobError(
            f"{folder}: wrote {written}, read back {read}; nothing was compared, run it again"
        )


def _touches(file: ArchiveFile, ranges: list[Range]) -> bool:
    return any(
        span.partition == one.partition and span.overlaps(one.start, one.end)
        for span in file.spans
        for one in ranges
    )


def _whole(topic: KafkaTopic) -> list[Range]:
    return [
        Range(topic.name, number, bounds.start, bounds.end)
        for number, bounds in topic.partitions.items()
        if bounds.start < bounds.end
    ]
