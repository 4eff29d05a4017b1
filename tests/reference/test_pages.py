"""The pages of docs/reference describe the current code."""

from __future__ import annotations

import re
from pathlib import Path

from app.cli import client
from app.sizing.api.cli import EXIT_CAPACITY
from tests.reference.headers import headers
from tests.reference.incidents import KIND, incidents
from tests.reference.metrics import families, name_of
from tests.reference.pages import stale, text

ALERTS = Path(__file__).parents[2] / "docker" / "prometheus" / "alerts.yaml"


def test_every_page_is_current() -> None:
    assert not stale(), "docs/reference is not current: run python -m tests.reference"


def test_every_metric_that_an_alerting_rule_reads_is_on_the_page() -> None:
    rules = [line for line in ALERTS.read_text().splitlines() if "expr:" in line]
    read = {name for line in rules for name in re.findall(r"\bswitchyard_\w+", line)}
    assert read
    assert read <= {name_of(family) for family in families()}
    assert all(family.documentation for family in families())


def test_every_exit_code_is_on_the_page() -> None:
    codes = {value for name, value in vars(client).items() if name.startswith("EXIT_")} | {EXIT_CAPACITY}
    assert codes <= set(map(int, re.findall(r"^\| (\d+) \|", text("cli.md"), re.MULTILINE)))


def test_every_incident_has_a_kind_a_message_and_a_remedy() -> None:
    found = list(incidents())
    assert len({one.kind for one in found}) > 60
    for one in found:
        assert KIND.fullmatch(one.kind), one
        assert one.messages, one
        assert one.remedies, one


def test_every_header_is_described() -> None:
    assert [name for names in headers().values() for name, words in names.items() if not words] == []
