"""definitions.md and settings.md: the fields of each model, from its JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from app.config.definition_base import MAX_DEFINITION_BYTES
from app.config.settings import Settings
from app.definitions.registry import json_schema
from app.kernel.durations import format_duration
from tests.reference.markdown import code, escaped, prose, table

Schema = Mapping[str, Any]
HEAD = ("field", "type", "default", "description")
DURATIONS, SIZES = ["10s", "500ms", "1h30m"], ["4MiB", "500kB"]  # the examples that mark these types
LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "minLength": "length at least {}",
    "maxLength": "length at most {}",
    "minItems": "at least {}",
    "maxItems": "at most {}",
}


def definitions() -> list[str]:
    """The page of definitions: a heading for each kind, and one for each part of it."""
    schema = json_schema()
    lines = [
        "# Definitions",
        "A definition is a YAML or JSON document; `switchyard config deploy` puts it into the control log.",
        "`switchyard config schema` prints the JSON Schema that this page is made of.",
        f"A definition has at most {MAX_DEFINITION_BYTES // 1024} KiB as JSON; `config validate` checks it.",
        "",
        "A duration is a number of seconds, or a text like `10s`, `500ms`, `1h30m`.",
        "A size is a number of bytes, or a text like `4MiB`, `500kB`.",
        "",
    ]
    for root in schema["oneOf"]:
        model = _target(root, schema["$defs"])
        kind = model["properties"]["kind"]["const"]
        lines += [f"## {kind}", "", *_part("", model, schema["$defs"], f"{kind}: ")]
    return lines


def settings() -> list[str]:
    """The page of switchyard.yaml."""
    schema = Settings.model_json_schema(by_alias=True)
    return [
        "# Settings: switchyard.yaml",
        "A worker reads this file when it starts. `SWITCHYARD_CONFIG` names another file.",
        "`SWITCHYARD_REGION`, `SWITCHYARD_ZONE` and `SWITCHYARD_WEB_PORT` override `region`, `worker.zone` "
        "and `web.port`.",
        "A secret is a reference: `env:NAME`, or `file:PATH`.",
        "",
        *_part("", schema, schema["$defs"], ""),
    ]


def _part(path: str, model: Schema, defs: Schema, prefix: str) -> list[str]:
    """The lines of the model at `path`, and of the models in it."""
    required = model.get("required", [])
    fields = model["properties"].items()
    lines = [prose(model.get("description")), ""]
    lines += table(
        HEAD,
        (
            (
                code(name),
                _type(field, defs),
                "required" if name in required else _default(field),
                escaped(field.get("description", "")),
            )
            for name, field in fields
        ),
    )
    for name, field in fields:
        for suffix, inner in _models_in(field, defs):
            place = f"{path}.{name}{suffix}".lstrip(".")
            lines += [f"### {prefix}{place}", "", *_part(place, inner, defs, prefix)]
    return lines


def _target(field: Schema, defs: Schema) -> Schema:
    target: Schema = defs[field["$ref"].rpartition("/")[2]]
    return target


def _models_in(field: Schema, defs: Schema) -> Iterator[tuple[str, Schema]]:
    """The models that a field holds, with `[]` for one of many."""
    if "$ref" in field:
        target = _target(field, defs)
        if "properties" in target:
            yield "", target
    for one in field.get("anyOf", ()):
        yield from _models_in(one, defs)
    if isinstance(items := field.get("items"), dict):
        for suffix, inner in _models_in(items, defs):
            yield f"[]{suffix}", inner


def _type(field: Schema, defs: Schema) -> str:
    """The type in words, with its limits."""
    if "$ref" in field:
        target = _target(field, defs)
        return "mapping" if "properties" in target else _type(target, defs)
    if "const" in field:
        return code(field["const"])
    if "enum" in field:
        return ", ".join(code(value) for value in field["enum"])
    examples = field.get("examples")
    if examples in (DURATIONS, SIZES):
        words = "duration" if examples == DURATIONS else "size"
    elif "anyOf" in field:
        several = [_type(one, defs) for one in field["anyOf"] if one.get("type") != "null"]
        words = " or ".join(dict.fromkeys(several))
    elif field.get("type") == "array":
        items = field.get("items", {})
        words = f"list of {_type(items, defs) if items else 'texts'}"
    elif field.get("type") == "object":
        words = "mapping"
    else:
        words = {
            "string": "text",
            "number": "number",
            "integer": "whole number",
            "boolean": "true or false",
        }.get(field.get("type", ""), "any" if field else "text")
    limits = [text.format(_number(field[name])) for name, text in LIMITS.items() if name in field]
    return f"{words} ({', '.join(limits)})" if limits else words


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"


def _default(field: Schema) -> str:
    """The default as a user writes it."""
    value = field.get("default")
    if value is None or value == "" or ("$ref" in field and isinstance(value, dict)):
        return ""
    if field.get("examples") == DURATIONS and isinstance(value, int | float):
        return code(format_duration(value))
    if field.get("examples") == SIZES and isinstance(value, int) and value % (1 << 20) == 0:
        return code(f"{value >> 20}MiB")
    return code(value if isinstance(value, str) else json.dumps(value))
