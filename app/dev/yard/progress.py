"""Shows a download's progress on standard error: a bar on a terminal, otherwise a few plain lines."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

PLAIN_LINE_EVERY_PERCENT = 25


def say(text: str) -> None:
    """Prints a sentence for the person who waits."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def steps(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Yields a function to call for each step, with a text; `total` steps are expected."""
    if sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[what]}", markup=True),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=total, what="")
            yield lambda what: bar.update(task, advance=1, what=what)
    else:
        yield _plain(title, total)


def _plain(title: str, total: int) -> Callable[[str], None]:
    done = 0

    def step(_what: str) -> None:
        nonlocal done
        before, done = done * 100 // total, done + 1
        after = done * 100 // total
        if before // PLAIN_LINE_EVERY_PERCENT != after // PLAIN_LINE_EVERY_PERCENT:
            say(f"{title}: {min(after, 100)} %")

    return step
