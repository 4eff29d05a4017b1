"""Prints a part of requirements.lock, for an image or `make demo`, with its hashes: nothing is chosen anew.

    python3 lock.py --without jgo        # what the project needs at run time, but this
    python3 lock.py hatchling            # what these packages need
    python3 lock.py . hatchling          # both

uv notes below every package who asked for it ("# via"); followed from the roots, that is the closure.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

PROJECT = "."
FOR_PROJECT = re.compile(r"^\S+ \(pyproject\.toml\)$")  # of the dev group it is "(pyproject.toml:dev)"
START = re.compile(r"^([A-Za-z0-9._-]+)==", re.MULTILINE)
VIA = re.compile(r"^ +#(?: +via)? +(\S.*)$", re.MULTILINE)


def blocks(lock: str) -> dict[str, str]:
    """Package -> its lines, of all of its versions: which one is taken may depend on Python's."""
    starts = [*START.finditer(lock)]
    ends = [*(found.start() for found in starts[1:]), len(lock)]
    found: dict[str, str] = {}
    for start, end in zip(starts, ends, strict=True):
        found[start[1]] = found.get(start[1], "") + lock[start.start() : end]
    return found


def closure(packages: dict[str, str], roots: set[str], without: set[str]) -> set[str]:
    """`roots`, and all that is there because of them. The project itself may be a root."""
    wanted_by = {
        name: {PROJECT if FOR_PROJECT.match(by) else by for by in VIA.findall(text)}
        for name, text in packages.items()
    }
    found, grew = set(roots), True
    while grew:
        more = {name for name, by in wanted_by.items() if by & found} - without
        grew = not more <= found
        found |= more
    return found & packages.keys()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("package", nargs="*", help=f"the roots; {PROJECT} is the project, and the default")
    parser.add_argument("--without", action="append", default=[], metavar="PACKAGE")
    parser.add_argument("--lock", type=Path, default=Path(__file__).with_name("requirements.lock"))
    options = parser.parse_args()
    packages = blocks(options.lock.read_text())
    unknown = {*options.package, *options.without} - packages.keys() - {PROJECT}
    if unknown:
        parser.error(f"{options.lock} has no {', '.join(sorted(unknown))}; write names as they stand in it")
    chosen = closure(packages, set(options.package or [PROJECT]), set(options.without))
    sys.stdout.write("".join(packages[name] for name in sorted(chosen)))


if __name__ == "__main__":
    main()
