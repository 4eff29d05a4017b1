"""What the entry points share: options, times, results."""

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
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from app.archive.errors import BadOption, InvalidArchive, SparkJobError, cause
from spark.kafka import KafkaCluster, read_options
from spark.progress import say
from spark.session import make_session
from spark.topics import UnreadRange

ROUND_FAILED = "A round failed, nothing of it counts"
TRIES = 3  # of one round: a topic may delete records while they are read

T = TypeVar("T")


def add_session(parser: ArgumentParser) -> None:
    """`--conf`, for every job that needs Spark."""
    parser.add_argument(
        "--conf",
        action="append",
        default=[],
        type=_setting,
        metavar="KEY=VALUE",
        help="Spark's configuration, e.g. spark.master=spark://host:7077 (default: local[*], 2 GB of heap)",
    )


def add_cluster(parser: ArgumentParser, which: str = "") -> None:
    """`--bootstrap` and `--command-config`, or `--<which>-bootstrap` and so on."""
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
        help="properties of a Kafka client: security.protocol=...",
    )


def add_round(parser: ArgumentParser, records: int) -> None:
    """How much a round takes, by default `records`."""
    parser.add_argument(
        "--round",
        type=positive,
        default=records,
        metavar="RECORDS",
        help=f"at most so many offsets in one round (default: {records:,})",
    )


class _Removed(argparse.Action):
    """Ends the command with what to do instead of an option of an earlier version."""

    def __call__(self, parser: ArgumentParser, *_: object, **__: object) -> None:
        parser.error(f"{self.option_strings[0]} was removed: {self.const}")


def add_removed(parser: ArgumentParser, options: Mapping[str, str]) -> None:
    """Options of earlier versions, with what to do instead of each."""
    for option, instead in options.items():
        parser.add_argument(option, action=_Removed, nargs="?", const=instead, help=argparse.SUPPRESS)


def session(name: str, options: Namespace) -> SparkSession:
    """The job's session."""
    return make_session(name, dict(options.conf))


def cluster(spark: SparkSession, bootstrap: str, config: Path | None) -> KafkaCluster:
    """The cluster that the options name."""
    return KafkaCluster(spark, bootstrap, read_options(config))


def ended(spark: SparkSession) -> bool:
    """Whether the session has ended by itself, as when its cluster's master is gone: no round works then."""
    context: Any = spark.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())


def time_ms(text: str) -> int:
    """Milliseconds since 1970 of "2026-11-22T09:30" (UTC unless it says otherwise), or of a number."""
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        msg = f"{text!r} is no time: give 2026-11-22T09:30 (UTC), 2026-11-22T09:30+01:00, or milliseconds"
        raise argparse.ArgumentTypeError(msg) from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def positive(text: str) -> int:
    """A whole number above 0; underscores may part its digits."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number <= 0:
        msg = f"{text!r} is no whole number above 0"
        raise argparse.ArgumentTypeError(msg)
    return number


def seconds(text: str) -> float:
    """ "90", "30s", "15m", "6h", "7d" in seconds."""
    units = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    if not number.replace(".", "", 1).isdigit():
        msg = f"{text!r} is no duration: give 30s, 15m, 6h or 7d"
        raise argparse.ArgumentTypeError(msg)
    return float(number) * units[unit]


def region(text: str) -> tuple[str, str]:
    """ "east=host:9092,..." as the region and the brokers of its control cluster."""
    name, equals, bootstrap = text.partition("=")
    if not equals or not name or not bootstrap or "/" in name:
        msg = f"{text!r} is not NAME=HOST:PORT,..."
        raise argparse.ArgumentTypeError(msg)
    return name, bootstrap


class UnreadRanges:
    """What a job could not read when it last looked, for people: each is said once, and again when it has
    changed."""

    def __init__(self) -> None:
        self._by_place: dict[tuple[str, str, int], UnreadRange] = {}

    def __bool__(self) -> bool:
        return bool(self._by_place)

    def say(self, found: Iterable[UnreadRange], where: str = "") -> None:
        """What the latest round over `where` could not read: a region, or ""."""
        news = {(where, one.topic, one.partition): one for one in found}
        for place, one in news.items():
            if self._by_place.get(place) != one:
                say(f"{_of(where)}{one}; the others go on, and the next round tries it again")
        for place in [place for place in self._by_place if place[0] == where and place not in news]:
            one = self._by_place.pop(place)
            say(f"{_of(where)}{one.topic}: what could not be read could be read now")
        self._by_place |= news

    def as_json(self) -> list[dict[str, Any]]:
        """For the job's result."""
        return [
            {**({"region": where} if where else {}), **asdict(one)}
            for (where, *_), one in sorted(self._by_place.items())
        ]


def _of(where: str) -> str:
    return f"{where}: " if where else ""


def result(content: Mapping[str, Any]) -> None:
    """The job's result, the last line on standard output."""
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


@contextmanager
def spark_failures(what: str) -> Iterator[None]:
    """A failure of Spark's in the block is told in one line.

    Raises:
        SparkJobError: `what` failed, and why.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as failure:
        raise SparkJobError(f"{what}: {cause(failure)}") from failure


def tried(round_: Callable[[], T], *final: type[SparkJobError], what: str = ROUND_FAILED) -> T:
    """One round of a job, begun again where it failed, up to `TRIES` times, and told as `what`; `final`:
    errors that no other try makes good, as no option and no store that does not fit becomes another.

    Raises:
        SparkJobError: the last try's.
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
            say(f"{failure}; once more")
    raise AssertionError("the last try raises")


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        msg = f"{text!r} is not KEY=VALUE"
        raise argparse.ArgumentTypeError(msg)
    return key, value
