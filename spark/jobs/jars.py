"""`python -m spark jars` prints the connector's jars."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from spark.connector import connector_jars

DESCRIPTION = "Downloads the jars of Spark's Kafka connector, and prints their paths, separated by commas."
EXAMPLES = """\
example:
  spark-submit --master spark://host:7077 --jars "$(python -m spark jars)" spark/__main__.py archive ...
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Adds none."""


def run(_options: Namespace) -> int:
    sys.stdout.write(",".join(str(jar) for jar in connector_jars()) + "\n")
    return 0
