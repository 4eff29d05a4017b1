"""rest.md: each call of the REST interface, from the OpenAPI document."""

from __future__ import annotations

from collections import Counter
from typing import Any

from app.web.console.server import document
from tests.reference.markdown import code, escaped, table

NEARLY_ALL = 0.95


def page() -> list[str]:
    """The page."""
    calls = [
        (path, method, call)
        for path, methods in document()["paths"].items()
        for method, call in methods.items()
    ]
    common = _common([call for path, _, call in calls if path.startswith("/api/")])
    lines = [
        "# The REST interface",
        "`switchyard config schema --openapi` prints the OpenAPI document that this page is made of.",
        "A worker serves it at `/api/v1/openapi.json`. It also has the fields of all bodies and answers.",
        "",
        "An error is a problem (RFC 9457, `application/problem+json`). Calls below `/api/` can end with:",
        "",
        *table(("status", "meaning"), ((status, escaped(words)) for status, words in sorted(common.items()))),
    ]
    tag = ""
    for path, method, call in calls:
        if call["tags"][0] != tag:
            tag = call["tags"][0]
            lines += [f"## {tag}", ""]
        lines += [f"### {method.upper()} {path}", "", escaped(_summary(call)), ""]
        if body := call.get("requestBody"):
            kinds = ", ".join(map(code, body["content"]))
            schemas = {_schema(one.get("schema", {})) for one in body["content"].values()}
            lines += [f"Body: {' '.join(sorted(schemas))} ({kinds})", ""]
        lines += table(
            ("parameter", "in", "type", "description"),
            (
                (
                    code(one["name"]) + (", required" if one.get("required") and one["in"] != "path" else ""),
                    one["in"],
                    escaped(_schema(one["schema"])),
                    escaped(one["description"]),
                )
                for one in call["parameters"]
            ),
        )
        lines += table(("status", "answer"), _answers(call, common if path.startswith("/api/") else {}))
    return lines


def _common(calls: list[dict[str, Any]]) -> dict[str, str]:
    """The answers that nearly all calls have, by status."""
    counts = Counter(
        (status, one["description"])
        for call in calls
        for status, one in call["responses"].items()
        if status >= "400"
    )
    return dict(answer for answer, count in counts.items() if count >= NEARLY_ALL * len(calls))


def _summary(call: dict[str, Any]) -> str:
    """The whole first paragraph, because OpenAPI's summary is only its first line."""
    return f"{call['summary']} {call.get('description', '')}"


def _answers(call: dict[str, Any], common: dict[str, str]) -> list[tuple[str, str]]:
    rows = []
    for status, answer in call["responses"].items():
        if common.get(status) == answer["description"]:
            continue
        schemas = {_schema(one.get("schema", {})) for one in answer.get("content", {}).values()}
        shown = ", ".join(sorted(map(code, schemas - {"Problem", "", "text"})))
        rows.append((status, escaped(answer["description"]) + (f": {shown}" if shown else "")))
    return rows


def _schema(schema: dict[str, Any]) -> str:
    """A schema in a word or two."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return ", ".join(map(code, schema["enum"]))
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join(dict.fromkeys(_schema(one) for one in schema[several]))
    if schema.get("type") == "array":
        return f"list of {_schema(schema.get('items', {}))}"
    words = {"string": "text", "integer": "whole number", "object": "mapping", "boolean": "true or false"}
    kind = schema.get("type", "")
    return words.get(kind, str(kind)) if isinstance(kind, str) else " or ".join(words.get(k, k) for k in kind)
