"""Puts Kafka's jars, as app/dev/yard/kafka.lock.json lists them, into a folder of an image.

    python fetch_jars.py WORK TARGET      # what is good in WORK already is not fetched

Ivy is the one of Debian's package: the yard looks for it where PySpark's wheel has it, and a folder of
that name saves the other 400 MB.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from app.dev.yard.jars import JarSet
from app.dev.yard.java import find_java

IVY = Path("/usr/share/java")


def main(work: Path, target: Path) -> None:
    (ivy,) = IVY.glob("ivy-[0-9]*.jar")
    beside = Path(__file__).parent / "pyspark" / "jars"
    beside.mkdir(parents=True)
    (beside / ivy.name).symlink_to(ivy)
    jars = replace(JarSet.load(), folder=work)
    jars.ensure(find_java())
    target.mkdir(parents=True)
    for jar in jars.jars:
        (work / jar.file_name).rename(target / jar.file_name)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())  # Ivy wants whole paths
