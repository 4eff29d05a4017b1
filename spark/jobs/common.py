"""Options, parsers of values, retries and results that the jobs share."""

from __future__ import annotations

import argparse
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from app.archive.errors import BadOption, InvalidArchive, SparkJobError, cause
from app.kernel.json_types import JsonMapping, JsonObject
from spark.kafka import KafkaCluster, read_options
from spark.progress import say
from spark.session import make_session
from spark.topics import UnreadRange

ROUND_FAILED = "A round failed and changed nothing"
TRIES = 3  # of a round: a topic may delete records while they are read

T = TypeVar("T")


def add_session(parser: ArgumentParser) -> None:
    """Adds `--conf`."""
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        type=_setting,
        metavar="KEY=VALUE",
        help="a setting of Spark, e.g. spark.master=spark://host:7077 (default: local[*], 2 GB of heap)",
    )


def add_cluster(parser: ArgumentParser, which: str = "") -> None:
    """Adds `--bootstrap` and `--command-config`, or `--<which>-bootstrap` and so on."""
    start = f"--{which}-" if which else "--"
    parser.add_argument(
        f"{start}bootstrap",
        required=True,
        metavar="HOST:PORT,...",
        help=f"brokers of the {which} cluster".replace("  ", " "),
    )
    parser.add_argument(
        f"{start}command-config",
        type=Path,
        metavar="FILE",
        help="a Kafka client's properties file: security.protocol=...",
    )


def add_every(parser: ArgumentParser) -> None:
    """`--every`, for jobs that run until they are stopped."""
    parser.add_argument(
        "--every",
        type=seconds,
        default=60.0,
        metavar="30s",
        help="how often to look for new records (default: 60s)",
    )


def add_round(parser: ArgumentParser, records: int) -> None:
    """Adds `--round`: the most offsets of a round."""
    parser.add_argument(
        "--round",
        type=positive,
        default=records,
        metavar="RECORDS",
        help=f"the most offsets of a round (default: {records:,})",
    )


class _Removed(argparse.Action):
    """Ends the command with the replacement of an option of an earlier version."""

    def __call__(self, parser: ArgumentParser, *_: object, **__: object) -> None:
        parser.error(f"{self.option_strings[0]} was removed: {self.const}")


def add_removed(parser: ArgumentParser, options: Mapping[str, str]) -> None:
    """Adds options of earlier versions, each with its replacement."""
    for option, instead in options.items():
        parser.add_argument(option, action=_Removed, nargs="?", const=instead, help=argparse.SUPPRESS)


def session(name: str, options: Namespace) -> SparkSession:
    return make_session(name, dict(options.conf))


def cluster(spark: SparkSession, bootstrap: str, config: Path | None) -> KafkaCluster:
    return KafkaCluster(spark, bootstrap, read_options(config))


def time_ms(text: str) -> int:
    """Parses "2026-11-22T09:30" (UTC without an offset) or a number; returns milliseconds since 1970."""
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        msg = f"{text!r} is not a time: give 2026-11-22T09:30 (UTC), 2026-11-22T09:30+01:00, or milliseconds"
        raise argparse.ArgumentTypeError(msg) from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def positive(text: str) -> int:
    """Parses a whole number above 0, with underscores between digits."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number <= 0:
        msg = f"{text!r} is not a whole number above 0"
        raise argparse.ArgumentTypeError(msg)
    return number


def seconds(text: str) -> float:
    """Parses "90", "30s", "15m", "6h" or "7d" to seconds."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    if not number.replace(".", "", 1).isdigit():
        msg = f"{text!r} is not a duration: give 30s, 15m, 6h or 7d"
        raise argparse.ArgumentTypeError(msg)
    return float(number) * units[unit]


def region(text: str) -> tuple[str, str]:
    """Parses "east=host:9092,..." to the region and the brokers of its control cluster."""
    name, equals, bootstrap = text.partition("=")
    if not equals or not name or not bootstrap or "/" in name:
        msg = f"{text!r} is not NAME=HOST:PORT,..."
        raise argparse.ArgumentTypeError(msg)
    return name, bootstrap


class UnreadRanges:
    """The ranges that the latest rounds could not read. Each is reported once, and again when it changes."""

    def __init__(self) -> None:
        self._by_place: dict[tuple[str, str, int], UnreadRange] = {}

    def __bool__(self) -> bool:
        return bool(self._by_place)

    def say(self, found: Iterable[UnreadRange], where: str = "") -> None:
        """Reports the ranges that the latest round over `where` (a region, or "") could not read."""
        news = {(where, one.topic, one.partition): one for one in found}
        for place, one in news.items():
            if self._by_place.get(place) != one:
                say(f"{_prefix(where)}{one}; all else is read, and the next round retries")
        for place in [place for place in self._by_place if place[0] == where and place not in news]:
            one = self._by_place.pop(place)
            say(f"{_prefix(where)}{one.topic}: offsets that could not be read before are read now")
        self._by_place |= news

    def as_json(self) -> list[JsonObject]:
        return [
            {**({"region": where} if where else {}), **asdict(one)}
            for (where, *_), one in sorted(self._by_place.items())
        ]


def _prefix(where: str) -> str:
    return f"{where}: " if where else ""


def result(content: JsonMapping) -> None:
    """Writes the job's result, the last line on standard output."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


@contextmanager
def spark_failures(what: str) -> Iterator[None]:
    """Turns a failure of Spark in the block into an error of one line.

    Raises:
        SparkJobError: `what` failed, with the cause.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as failure:
        raise SparkJobError(f"{what}: {cause(failure)}") from failure


def tried(round_: Callable[[], T], *final: type[SparkJobError], what: str = ROUND_FAILED) -> T:
    """Runs a round, up to `TRIES` times, and reports a failure as `what`.

    A wrong option or store fails at once, and so do `final` errors, because a retry cannot help.

    Raises:
        SparkJobError: The last try failed.
    """
    lasting: tuple[type[SparkJobError], ...] = (BadOption, InvalidArchive, *final)
    for number in range(1, TRIES + 1):
        try:
            with spark_failures(what):
                return round_()
        except lasting:
            raise
        except SparkJobError as failure:
            if number == TRIES:
                raise
            say(f"{failure}; retrying")
    raise AssertionError("the last try raises")


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        msg = f"{text!r} is not KEY=VALUE"
        raise argparse.ArgumentTypeError(msg)
    return key, value
