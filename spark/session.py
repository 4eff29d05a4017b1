"""Makes the Spark session: on all cores of this machine, or on a cluster by Spark's own configuration.

The command line's `--conf` wins over spark-defaults.conf or the arguments of `spark-submit`, and both win
over the defaults here. The defaults suit one machine: 2 GB of heap, no web page, ports on the loopback
address only. The time zone is UTC whatever is configured, because all machines must put a record into the
same date and hour.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark
from pyspark import SparkConf
from pyspark.sql import SparkSession

from app.dev.yard.jars import switchyard_home
from spark.connector import connector_jars
from spark.java import prepare_java

LOGGING = Path(__file__).with_name("log4j2.properties")
HEAP = "2g"
LOOPBACK = "127.0.0.1"
SETTING = re.compile(r"\s*([^\s=#][^\s=]*)(?:\s*=\s*|\s+)(.*)")
# The rule removes an empty branch together with its Observation, and `Observation.get` then waits for ever.
OBSERVED_STAYS = "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation"
EXCLUDED_RULES = "spark.sql.adaptive.optimizer.excludedRules"
SHUFFLES_PER_CORE = 4  # small enough to pipeline on one machine; adaptive execution merges tiny partitions


def make_session(name: str, given: Mapping[str, str] | None = None) -> SparkSession:
    """Makes a session for the job `name`, with the Kafka connector. `given` wins over all other
    configuration, except the time zone.

    Raises:
        InvalidArchive: The machine has no Java for Spark, or Spark cannot read jars from Switchyard's folder.
        Unreachable: The connector cannot be downloaded.
    """
    home = switchyard_home() / "spark"
    chosen = settings(home, outside_settings() | dict(given or {}))
    home.mkdir(parents=True, exist_ok=True)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # otherwise spark-submit has started Java
        prepare_java(home)
    if _is_local(chosen):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # not the PATH's python3
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    builder = SparkSession.builder.appName(f"switchyard-{name}")
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def settings(home: Path, decided: Mapping[str, str]) -> dict[str, str]:
    """The builder's configuration: `decided`, the defaults for the keys that it lacks, and settings that
    results depend on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    defaults = {
        "spark.driver.memory": HEAP,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
        "spark.jars": ""
        if decided.keys() & {"spark.jars", "spark.jars.packages"}  # the user names the connector
        else ",".join(str(jar) for jar in connector_jars()),
        "spark.hadoop.fs.defaultFS": "file:///",  # options name local folders, even where HDFS is configured
        "spark.local.dir": str(home / "local"),
        "spark.sql.warehouse.dir": (home / "warehouse").as_uri(),
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if _is_local(decided):
        defaults |= {
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.host": LOOPBACK,
            "spark.sql.shuffle.partitions": str(SHUFFLES_PER_CORE * cores),
        }
    excluded = decided.get(EXCLUDED_RULES, "")
    fixed = {
        "spark.sql.session.timeZone": "UTC",  # of dates and hours in archives and stores
        EXCLUDED_RULES: f"{excluded},{OBSERVED_STAYS}" if excluded else OBSERVED_STAYS,
    }
    return {key: value for key, value in defaults.items() if value} | dict(decided) | fixed


def _is_local(decided: Mapping[str, str]) -> bool:
    return decided.get("spark.master", "local").startswith("local")


def outside_settings() -> dict[str, str]:
    """The configuration that spark-submit or spark-defaults.conf sets."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return dict(SparkConf().getAll())
    folder = Path(
        os.environ.get("SPARK_CONF_DIR")
        or Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "conf"
    )
    file = folder / "spark-defaults.conf"
    return read_defaults(file.read_text()) if file.exists() else {}


def read_defaults(text: str) -> dict[str, str]:
    """The settings in a spark-defaults.conf: a key, blanks or an equals sign, the value."""
    lines = (SETTING.match(line) for line in text.splitlines())
    return {line[1]: line[2].strip() for line in lines if line}
