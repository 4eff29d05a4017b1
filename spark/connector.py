"""The jars of Spark's Kafka connector.

`connector.lock.json` (written by `python -m spark.relock`) pins the jars that the connector needs beyond
PySpark's own, with size and SHA-256. The yard downloads them once into the user's cache folder. Spark gets
their paths and resolves nothing itself.
"""

from __future__ import annotations

from pathlib import Path

from app.archive.errors import Unreachable
from app.dev.yard.errors import YardError
from app.dev.yard.jars import JarSet

LOCK_FILE = Path(__file__).with_name("connector.lock.json")


def connector_jars() -> list[Path]:
    """The paths of the connector's jars; downloads those that are missing.

    Raises:
        Unreachable: A jar cannot be downloaded; the text has the remedy.
    """
    jars = JarSet.load(LOCK_FILE)
    try:
        jars.ensure()
    except YardError as failure:
        raise Unreachable(str(failure)) from failure
    return [jars.folder / jar.file_name for jar in jars.jars]
