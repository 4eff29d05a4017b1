"""The registry of definition kinds agrees with the API, also on the size of a definition."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from app.config.definition_base import MAX_DEFINITION_BYTES
from app.config.definition_kind import DefinitionKind
from app.config.problems import InvalidConfiguration
from app.definitions.registry import KINDS, load_definitions
from app.web.console.server import document
from tests.config.examples import SMALL, with_bytes


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_api_has_the_paths_of_a_kind(kind: DefinitionKind[Any]) -> None:
    paths = {
        re.sub("{[^}]*}", "{}", path.removeprefix("/api/v1")): calls
        for path, calls in document()["paths"].items()
    }
    key = kind.prefix + "/".join("a b" for _ in kind.named_by)
    assert {"get", "put", "delete"} <= paths[kind.path(key).replace("a%20b", "{}")].keys()
    assert "get" in paths[kind.list_api or kind.api]


def many(letter: str, chars: int) -> list[str]:
    """A thousand topics, the most that a list may have, of so many characters."""
    return [f"{letter}{number:04}".ljust(chars, "x") for number in range(1000)]


ROUTE = {"kind": "Route", "metadata": {"name": "mirror"},
         "spec": {"from": "east", "to": "west", "topics": many("t", 200)}}  # fmt: skip
CHANNEL = {"webhook": {"url": "https://a.example"}}
ALERT = {"kind": "Alert", "metadata": {"name": "losses"},
         "spec": {"on": "loss", "topics": many("t", 200), "exclude": many("u", 200),
                  "channels": [CHANNEL]}}  # fmt: skip


def refusal(folder: Path, *documents: dict[str, Any]) -> str:
    """What validation says of a file with these documents, one a line; "" if they are valid."""
    text = "\n---\n".join(orjson.dumps({"apiVersion": "switchyard/v1", **one}).decode() for one in documents)
    (folder / "all.yaml").write_text(text)
    try:
        load_definitions([folder / "all.yaml"])
    except InvalidConfiguration as error:
        return str(error)
    return ""


def test_a_definition_of_the_largest_size_is_valid(tmp_path: Path) -> None:
    largest = with_bytes(SMALL, MAX_DEFINITION_BYTES)
    assert len(orjson.dumps(largest)) == MAX_DEFINITION_BYTES
    assert refusal(tmp_path, largest) == ""


def test_a_byte_more_is_refused_with_its_place_and_its_largest_field(tmp_path: Path) -> None:
    words = refusal(tmp_path, SMALL, with_bytes({**SMALL, "metadata": {**SMALL["metadata"], "topic": "big"}},
                                                MAX_DEFINITION_BYTES + 1))  # fmt: skip
    assert f"{tmp_path}/all.yaml:3:" in words
    assert f"error: spec.isolation: the definition has {MAX_DEFINITION_BYTES + 1} bytes as JSON, " in words
    assert f"at most {MAX_DEFINITION_BYTES} bytes are taken" in words
    assert "divide it into several definitions" in words


def test_a_list_of_a_thousand_topics_fits(tmp_path: Path) -> None:
    assert refusal(tmp_path, ROUTE, ALERT) == ""


def test_lists_that_do_not_fit_together_are_refused_for_each_kind(tmp_path: Path) -> None:
    larger = {"exclude": [f"{name}.*" for name in many("u", 400)]}
    for kind in (ROUTE, ALERT):
        words = refusal(tmp_path, {**kind, "spec": {**kind["spec"], **larger}})
        assert "spec.exclude: the definition has" in words, words[:300]
