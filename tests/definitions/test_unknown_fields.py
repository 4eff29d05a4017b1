"""Every unknown field in any place is reported at its own line."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.problems import InvalidConfiguration
from app.config.settings import load_settings
from app.definitions.registry import load_definitions
from tests.config.examples import FULL

SETTINGS: dict[str, Any] = {
    "region": "east",
    "clusters": [
        {
            "name": "r",
            "region": "east",
            "tier": "regional",
            "bootstrap": ["h:1"],
            "security": {"protocol": "plaintext"},
        },
        {"name": "a", "region": "east", "tier": "aggregate", "bootstrap": "h:2"},
    ],
    "web": {"port": 7000},
    "logging": {"level": "debug"},
    "worker": {"grace": "10s"},
}


def mappings(data: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths of all mappings in `data`."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    below = [found for name, value in items for found in mappings(value, (*path, name))]
    return [path, *below] if isinstance(data, dict) else below


def spoilt(document: dict[str, Any]) -> st.SearchStrategy[dict[tuple[str | int, ...], str]]:
    """Unknown fields by the path of their mapping; each name begins with letters that no other line has."""
    names = st.from_regex(r"zq[a-zA-Z0-9_.-]{1,12}", fullmatch=True)
    return st.dictionaries(st.sampled_from(mappings(document)), names, min_size=1, max_size=5)


def write(
    document: dict[str, Any], unknown: dict[tuple[str | int, ...], str], file: Path
) -> set[tuple[str, int]]:
    """Writes the document with the unknown fields; the field and line of each expected problem."""
    document = copy.deepcopy(document)
    for number, (path, name) in enumerate(unknown.items()):
        at: Any = document
        for part in path:
            at = at[part]
        at[f"{name}{number}"] = number
    text = json.dumps(document, indent=1)
    file.write_text(text)
    lines = [line.strip().rstrip(",") for line in text.splitlines()]
    return {
        (".".join(map(str, (*path, f"{name}{number}"))), lines.index(f'"{name}{number}": {number}') + 1)
        for number, (path, name) in enumerate(unknown.items())
    }


@given(unknown=spoilt(FULL))
def test_every_unknown_field_of_a_definition_is_reported_at_its_line(
    unknown: dict[tuple[str | int, ...], str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "unknown-definition.yaml"
    expected = write(FULL, unknown, file)

    with pytest.raises(InvalidConfiguration) as caught:
        load_definitions([file])

    assert {(p.field, p.line) for p in caught.value.problems if p.severity == "error"} == expected


@given(unknown=spoilt(SETTINGS))
def test_every_unknown_field_of_the_static_file_is_reported_at_its_line(
    unknown: dict[tuple[str | int, ...], str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "unknown-settings.yaml"
    expected = write(SETTINGS, unknown, file)

    with pytest.raises(InvalidConfiguration) as caught:
        load_settings(file, {})

    assert {(problem.field, problem.line) for problem in caught.value.problems} == expected
