"""Writes docs/reference from the code.

    python -m tests.reference           writes every page
    python -m tests.reference --check   ends with 1 and names the pages that differ

Run it after a change of the code that a page describes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.reference.pages import FOLDER, stale, write


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        "python -m tests.reference",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 where a page differs")
    if not parser.parse_args(arguments).check:
        write()
        return 0
    differing = stale()
    sys.stdout.writelines(f"{FOLDER.name}/{name} is not current\n" for name in differing)
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
