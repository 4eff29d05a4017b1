"""The jars of Spark's Kafka connector.

`connector.lock.json` (written by `python -m spark.relock`) pins the jars that the connector needs beyond
PySpark's own, with size and SHA-256. The yard downloads them once into the user's cache folder. Spark gets
their paths and resolves nothing itself.
"""

from __future__ import annotations

from pathlib import Path

from app.archive.errors import InvalidArchive, Unreachable
from app.dev.yard.errors import YardError
from app.dev.yard.jars import JarSet

PATTERNS = frozenset("[]{}*?\\,")  # spark-submit resolves the jars' paths, and divides them at commas
LOCK_FILE = Path(__file__).with_name("connector.lock.json")


def connector_jars() -> list[Path]:
    """The paths of the connector's jars; downloads those that are missing.

    Raises:
        InvalidArchive: Spark cannot read jars from Switchyard's folder.
        Unreachable: A jar cannot be downloaded; the text has the remedy.
    """
    jars = JarSet.load(LOCK_FILE)
    home = jars.folder.parent
    if odd := sorted(PATTERNS.intersection(str(home))):
        raise InvalidArchive(
            f"SWITCHYARD_HOME: Spark takes {' '.join(odd)} in {home} for a pattern, and finds no jar there; "
            "set it to a folder without these characters"
        )
    try:
        jars.ensure()
    except YardError as failure:
        raise Unreachable(str(failure)) from failure
    return [jars.folder / jar.file_name for jar in jars.jars]
