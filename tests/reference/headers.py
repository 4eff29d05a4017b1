"""headers.md: the headers that Switchyard writes and reads, from the constants that name them.

The comment at the end of a constant's line describes the header.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.reference.markdown import code, escaped, prose, table

APP = Path(__file__).parents[2] / "app"
NAME = re.compile(r"(switchyard|kafka)-[a-z-]+")
# Constants of this form that are no headers: groups, a resource type, a user agent, a distribution.
OTHERS = {
    "switchyard-drill-", "switchyard-audit-", "kafka-cluster", "switchyard-kafka", "switchyard-grpc-client",
}  # fmt: skip
# Where several modules name a header, these describe it.
OWNERS = (
    "app.dispatch.model.retry_headers",
    "app.replicate.destination.copy_headers",
    "app.dispatch.push.metadata",
)
RECORDS, CALLS = "Headers of records", "Metadata of gRPC calls"
INTRODUCTIONS = {
    RECORDS: "Values are ASCII text, unless the description says something else.",
    CALLS: "Workers send these with a unary call, or read them in its answer. A stream has fields instead.",
}


def page() -> list[str]:
    """The page."""
    lines = ["# Headers"]
    found = headers()
    for title, folders in ((RECORDS, False), (CALLS, True)):
        lines += [f"## {title}", "", INTRODUCTIONS[title], ""]
        for module, names in found.items():
            if module.startswith("app.dispatch.push.") != folders:
                continue
            lines += [f"### {module}", "", _about(module), ""]
            lines += table(("header", "description"), ((code(n), escaped(text)) for n, text in names.items()))
    return lines


def headers() -> dict[str, dict[str, str]]:
    """Names and descriptions, by the module that defines the name first."""
    places: dict[str, dict[str, str]] = defaultdict(dict)
    seen: dict[str, str] = {}
    modules = _modules()
    for module in sorted(modules, key=lambda one: (one not in OWNERS, one)):
        for name, text in _names_in(modules[module].read_text()):
            if name in seen and (not text or places[seen[name]][name]):
                continue
            if name in seen:
                del places[seen[name]][name]
            seen[name] = module
            places[module][name] = text
    return {module: names for module, names in places.items() if names}


def _modules() -> dict[str, Path]:
    """The application's files by module name."""
    roots = (APP.parent, *(APP / "sdk").iterdir())
    names = {}
    for file in APP.rglob("*.py"):
        root = max((root for root in roots if file.is_relative_to(root)), key=lambda root: len(root.parts))
        names[".".join(file.relative_to(root).with_suffix("").parts)] = file
    return names


def _about(module: str) -> str:
    text = _modules()[module].read_text()
    return prose(ast.get_docstring(ast.parse(text))).split("\n\n")[0]


def _names_in(source: str) -> Iterator[tuple[str, str]]:
    """The headers in a module's constants, with the comments at the end of their lines."""
    if not NAME.search(source):
        return
    tree = ast.parse(source)
    keywords = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.keyword)}
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or id(node) in keywords:
            continue
        name = node.value.decode(errors="replace") if isinstance(node.value, bytes) else str(node.value)
        if NAME.fullmatch(name) and name not in OTHERS:
            yield name, comments.get(node.lineno, "")
