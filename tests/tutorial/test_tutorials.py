"""The tutorials do what they say: a shell runs each page on real Kafka, and its outputs are compared."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tutorial.page import Command, File, Values, steps
from tests.tutorial.terminal import ROOT, Terminal

pytestmark = pytest.mark.system

PAGES = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
LONG = {"prove", "failover"}  # they wait for windows that close, and for a region that returns
REPEAT_TIMEOUT_S = 120.0  # a person sees it within some seconds; a loaded machine must not fail for it
REPEAT_S = 0.5


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.deep(minutes=1.2)] if page.stem in LONG else [], id=page.stem)
        for page in PAGES
    ],
)
def test_every_command_of_a_tutorial_shows_what_the_page_says(page: Path, terminal: Terminal) -> None:
    values = Values({})
    for step in steps(page.read_text()):
        match step:
            case File():
                terminal.write(step.name, step.text)
            case Command():
                try_out(terminal, values, step, page.name)


def try_out(terminal: Terminal, values: Values, step: Command, page: str) -> None:
    """Runs a command, again while the page says so. Fails with what the page shows and what came."""
    deadline_s = time.monotonic() + REPEAT_TIMEOUT_S
    while True:
        code, output = terminal.run(values.real(step.text))
        shown = step.output and terminal.with_ports(step.output)
        if code == 0 and (shown is None or values.match(shown, output)):
            return
        if not step.is_repeated or time.monotonic() > deadline_s:
            pytest.fail(
                f"{page}, line {step.line}: exit code {code}\n{step.text}\n"
                f"--- the page shows\n{shown}\n--- it was\n{output}",
                pytrace=False,
            )
        time.sleep(REPEAT_S)
