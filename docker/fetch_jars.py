"""Puts Kafka's jars, as app/dev/yard/kafka.lock.json lists them, into a folder of an image.

python fetch_jars.py WORK TARGET      # what is good in WORK already is not fetched
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from app.dev.yard.jars import JarSet


def main(work: Path, target: Path) -> None:
    jars = replace(JarSet.load(), folder=work)
    jars.ensure()
    target.mkdir(parents=True)
    for jar in jars.jars:
        (work / jar.file_name).rename(target / jar.file_name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
