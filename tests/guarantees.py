"""Writes docs/tests.md: Switchyard's guarantees, and the tests that hold them.

    python -m tests.guarantees           writes it, after a change of guarantees.yaml or of tests' marks
    python -m tests.guarantees --check   ends with 1 if the page is not current

guarantees.yaml names files and folders of tests. The tests themselves are marked `deep`.
"""

from __future__ import annotations

import argparse
import ast
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

TESTS = Path(__file__).parent
SOURCE = TESTS / "guarantees.yaml"
PAGE = TESTS.parent / "docs" / "tests.md"
INTRODUCTION = """\
# What the tests hold

This page lists what Switchyard guarantees, and the tests that show it. The tests of `make test` hold each
guarantee on a laptop. The tests of `make test-deep` hold it for longer, and through
more kinds of trouble; CI runs an eighth of them with each commit.

All places are below `tests/`. `python -m tests.guarantees` writes this page from `tests/guarantees.yaml` and
the marks of the tests.
"""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """A guarantee, the places below tests/ that hold it, and how to try it, in Markdown.

    `deep` is the reason if no test of `make test` holds it.
    """

    text: str
    tests: tuple[str, ...]
    trial: str = ""
    deep: str = ""

    def held_by(self, suite: str) -> list[str]:
        """The places that have tests in a suite."""
        return [place for place in self.tests if any(suite in suites_of(file) for file in files_of(place))]


def load() -> dict[str, list[Guarantee]]:
    """The guarantees by chapter, in the order of guarantees.yaml."""
    document = YAML(typ="safe").load(SOURCE)
    return {
        chapter: [
            Guarantee(one["guarantee"], tuple(one["tests"]), one.get("try", ""), one.get("deep", ""))
            for one in entries
        ]
        for chapter, entries in document.items()
    }


def files_of(place: str) -> list[Path]:
    """The files of a place: `kafka/append/` is all of a folder, `kafka/append/test_lane` one file."""
    if place.endswith("/"):
        return sorted((TESTS / place).rglob("test_*.py"))
    return [TESTS / f"{place}.py"]


def suites_of(file: Path) -> set[str]:
    """The suites that run tests of a file: `test`, and `test-deep` if it has deep tests."""
    return _suites_in(file.read_text())


@functools.cache  # several guarantees name the same file
def _suites_in(source: str) -> set[str]:
    found = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and getattr(node.value, "attr", "") == "TestCase":
            found.add("test")  # a state machine's
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            if not any(_is_deep(mark) for mark in node.decorator_list):
                found.add("test")
            if any(_is_deep(inner) for mark in node.decorator_list for inner in ast.walk(mark)):
                found.add("test-deep")
    return found


def _is_deep(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "deep"


def page() -> str:
    """The page, in Markdown."""
    lines = [INTRODUCTION]
    for chapter, guarantees in load().items():
        lines += [
            f"## {chapter}\n",
            "| guarantee | make test | make test-deep | try it |",
            "|---|---|---|---|",
        ]
        for one in guarantees:
            quick, deep = (", ".join(one.held_by(suite)) for suite in ("test", "test-deep"))
            lines.append(f"| {one.text} | {quick or f'none: {one.deep}'} | {deep} | {one.trial} |")
        lines.append("")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        "python -m tests.guarantees",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 where it differs")
    text = page()
    if parser.parse_args(arguments).check:
        return int(PAGE.read_text() != text)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
