"""A tutorial's page as steps: files that it has people write, commands, and outputs that it shows.

The form of a page, which GitHub and the site both show
- A block of `yaml` or `python` is a file. Its first line is a comment that names it: `# billing.yaml`.
- A block of `sh` is typed into one shell. No command may fail; `|| echo "exit code $?"` shows that one does.
- A block of `text` behind a command, in the same section, is its whole output. `…` stands for any part of a
  line, and alone for any lines. Widths of columns do not count.
- If the prose between a command and its output has the word "Repeat", people repeat the command until it
  shows that.
- An ID or a time of an output varies. Where it returns, in an output or a command, it is the same again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# (\S+)\n")
LANGUAGES = {"sh", "text", "yaml", "python"}
ANY = "…"
VARIES = re.compile(r"\b(?:failover|merge|copy-again)-[0-9a-f]{8,12}\b|\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


@dataclass(frozen=True, slots=True)
class File:
    """A file that the page has people write, at a line of the page."""

    line: int
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """Lines for the shell, at a line of the page. `output`: None where the page shows none."""

    line: int
    text: str
    output: str | None = None
    is_repeated: bool = False


Step = File | Command


def steps(markdown: str) -> list[Step]:
    """The steps of a page, in order. Raises ValueError for a block that has not the form."""
    found: list[Step] = []
    prose = ""
    for before, language, text, line in _blocks(markdown):
        prose += before
        if language not in LANGUAGES:
            raise ValueError(f"line {line}: a tutorial has no block of {language!r}")
        if language == "sh":
            found.append(Command(line, text))
        elif language == "text":
            command = found[-1] if found else None
            if re.search(r"^#", prose, re.MULTILINE) or not isinstance(command, Command):
                continue  # a picture: a new section began since the last command
            found[-1] = replace(command, output=text, is_repeated="Repeat" in prose)
        elif name := FILE_NAME.match(text):
            found.append(File(line, name[1], text))
        else:
            raise ValueError(f"line {line}: the first line of a file is a comment with its name")
        prose = ""
    return found


def _blocks(markdown: str) -> Iterator[tuple[str, str, str, int]]:
    """The prose before each block, its language, its text, and its line in the page."""
    end = 0
    for block in BLOCK.finditer(markdown):
        yield markdown[end : block.start()], block[1], block[2], markdown.count("\n", 0, block.start()) + 1
        end = block.end()


@dataclass(slots=True)
class Values:
    """What a page's IDs and times are in this run: `known`, the page's -> the run's."""

    known: dict[str, str]

    def real(self, text: str) -> str:
        """A command of the page, with this run's IDs and times."""
        return VARIES.sub(lambda found: self.known.get(found[0], found[0]), text)

    def match(self, shown: str, output: str) -> bool:
        """Whether a command's output is that of the page; then its IDs and times are known."""
        groups: dict[str, str] = {}
        lines = (self._pattern(line, groups) for line in _lines(shown))
        found = re.fullmatch("".join(lines), "".join(f"{line}\n" for line in _lines(output)))
        if found is None:
            return False
        self.known |= {value: found[group] for value, group in groups.items()}
        return True

    def _pattern(self, line: str, groups: dict[str, str]) -> str:
        if line == ANY:
            return r"(?:.*\n)*?"
        parts = re.split(f"({ANY}|{VARIES.pattern})", line)
        return "".join(self._part(part, groups) for part in parts) + r"\n"

    def _part(self, part: str, groups: dict[str, str]) -> str:
        if part == ANY:
            return ".*?"
        if not VARIES.fullmatch(part):
            return re.escape(part)
        if part in self.known:
            return re.escape(self.known[part])
        if part in groups:
            return f"(?P={groups[part]})"
        groups[part] = f"value{len(groups)}"
        return f"(?P<{groups[part]}>{VARIES.pattern})"


def _lines(text: str) -> list[str]:
    """The lines that are not empty, with single spaces."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]
