"""Runs the tests of the folders that differ from a commit: `python -m tests.changed`, or `make check`.

    python -m tests.changed             differences from the upstream branch, or from HEAD without one
    python -m tests.changed 40e9ea0     differences from a commit

A change of `app/dispatch/pump/intake.py` runs `tests/dispatch/pump`. Untracked files
count as well. A file outside the rooms (conftest.py, pyproject.toml) runs no test; `make test` does.

The exit code is that of `python -m tests`, or 0 if no folder with tests differs or all its tests are deep.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from tests import __main__ as suite

ROOT = Path(__file__).parents[1]
TESTS = PurePosixPath("tests")
# Folders whose tests have another name. Tests of whole workers cover agents and tables.
PLACES = {"spark": "spark", "docker": "docker", "agents": "system", "tables": "system"}


def git(*arguments: str) -> list[str]:
    """The lines that a git command prints. Raises CalledProcessError."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def upstream() -> str:
    """The commit where this branch left its upstream, or HEAD."""
    try:
        return git("merge-base", "HEAD", "@{upstream}")[0]
    except subprocess.CalledProcessError:
        return "HEAD"


def changed_files(commit: str) -> list[str]:
    """The changed and untracked files, as paths from the repository's root."""
    return [
        *git("diff", "--name-only", "--no-renames", commit),
        *git("ls-files", "--others", "--exclude-standard"),
    ]


def folders_of(files: Iterable[str], root: Path = ROOT) -> list[str]:
    """The nearest folder of tests for each file, without subfolders of other results."""
    found: set[PurePosixPath] = set()
    for file in files:
        top, *_ = parts = PurePosixPath(file).parent.parts or ("",)
        place = PurePosixPath(*parts[1:]) if top in {"app", "tests"} else PurePosixPath(PLACES.get(top, ""))
        while place.parts and not (root / TESTS / place).is_dir():
            place = place.parent
        if place.parts and place.parts[0] != "bench":
            found.add(TESTS / place)
    return sorted(str(place) for place in found if found.isdisjoint(place.parents))


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        "python -m tests.changed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", nargs="?", help="what to compare with")
    commit = parser.parse_args(arguments).commit or upstream()
    try:
        folders = folders_of(changed_files(commit))
    except subprocess.CalledProcessError as error:
        parser.error(f"git knows no commit {commit!r}: {error.stderr.strip()}")
    if not folders:
        sys.stdout.write(f"No folder with tests differs from {commit}.\n")
        return 0
    sys.stdout.write(f"Differs from {commit}: {' '.join(folders)}\n")
    sys.stdout.flush()
    code = suite.main(folders)
    return 0 if code == suite.NOTHING_RAN else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
