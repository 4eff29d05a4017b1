"""The jars that let Spark read and write Kafka.

`connector.lock.json` lists what the connector asks for beyond PySpark's own jars, with size and SHA-256
(written by `python -m spark.relock`). They are fetched once, by the yard's means, into the user's cache
folder, and given to Spark as files: Spark resolves nothing itself.
"""

from __future__ import annotations

from pathlib import Path

from app.archive.errors import Unreachable
from app.dev.yard.errors import YardError
from app.dev.yard.jars import JarSet

LOCK_FILE = Path(__file__).with_name("connector.lock.json")


def connector_jars() -> list[Path]:
    """The connector's jars, fetched when they are not there.

    Raises:
        Unreachable: they are not here and cannot be fetched, with the remedy.
    """
    jars = JarSet.load(LOCK_FILE)
    try:
        jars.ensure()
    except YardError as failure:
        raise Unreachable(str(failure)) from failure
    return [jars.folder / jar.file_name for jar in jars.jars]
