"""Services choose their versions of aiokafka, grpcio and others, so libraries for services use only public
names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SDK = Path(__file__).parents[3] / "app" / "sdk"
LIBRARIES = [SDK / name / "switchyard" / name for name in ("producer", "audit", "receiver")]
NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}  # public, so that fields may have any name


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def own_objects(tree: ast.AST, classes: set[str]) -> Iterator[str]:
    """Names of objects that the file creates from its own classes, or annotates with them."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=name, annotation=ast.expr() as kind) if ast.unparse(kind) in classes:
                yield name
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=made))):
                if made in {"cls", *classes}:
                    yield name


def private_names(source: str) -> Iterator[str]:
    """Private names that the file defines nowhere, and does not use on an object of its own classes."""
    tree = ast.parse(source)
    classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    own = {*NAMED_TUPLES, *classes, *(node.name for node in ast.walk(tree) if isinstance(node, functions))}
    objects = {"self", "cls", *own_objects(tree, classes)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own:
            if not (isinstance(node.value, ast.Name) and node.value.id in objects):
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
            if any(map(is_private, names)):
                yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: str(library.name))
def test_a_library_for_services_uses_only_public_names_of_its_dependencies(library: Path) -> None:
    files = sorted(library.rglob("*.py"))
    assert files
    found = [f"{path.name}, {name}" for path in files for name in private_names(path.read_text())]
    assert found == []


def test_private_names_are_found_where_they_are_used() -> None:
    source = """
from aiokafka import _crecords
class Mine:
    def _end(self, other: Mine, producer):
        other._anything = 1
        self._producer = other._end() and producer._closed
        return self._producer._sender.sender_task, other._replace(a=1), type(other).__name__
"""
    assert [name.split(": ")[1] for name in private_names(source)] == [
        "from aiokafka import _crecords",
        "producer._closed",
        "self._producer._sender",
    ]
