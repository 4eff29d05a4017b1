"""The registry of definition kinds agrees with the API."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.config.definition_kind import DefinitionKind
from app.definitions.registry import KINDS
from app.web.console.server import document


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_api_has_the_paths_of_a_kind(kind: DefinitionKind[Any]) -> None:
    paths = {
        re.sub("{[^}]*}", "{}", path.removeprefix("/api/v1")): calls
        for path, calls in document()["paths"].items()
    }
    key = kind.prefix + "/".join("a b" for _ in kind.named_by)
    assert {"get", "put", "delete"} <= paths[kind.path(key).replace("a%20b", "{}")].keys()
    assert "get" in paths[kind.list_api or kind.api]
