"""`python -m spark jars`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from spark.connector import connector_jars

DESCRIPTION = "Fetches the jars that let Spark read Kafka, and prints their paths with commas between them."
EXAMPLES = """\
example:
  spark-submit --master spark://host:7077 --jars "$(python -m spark jars)" spark/__main__.py archive ...
"""


def add_arguments(parser: ArgumentParser) -> None:
    """None."""


def run(_options: Namespace) -> int:
    """Prints them."""
    sys.stdout.write(",".join(str(jar) for jar in connector_jars()) + "\n")
    return 0
