"""The registry of definition kinds: `Workload`, `Route`, `Failover`, `AuditPlan` and `Alert`. Definitions are
kept in the control log and changed while workers run.

All fields are accepted and checked. A field that has no effect yet gives a warning where that is harmless,
and an error where a user would rely on it.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from pydantic.json_schema import models_json_schema

from app.alerts.definition_kind import ALERT
from app.audit.definition_kind import AUDIT_PLAN
from app.config.definition_base import MAX_DEFINITION_BYTES, Definition
from app.config.definition_kind import D, DefinitionKind, KnownPlaces
from app.config.problems import (
    ConfigProblem,
    Document,
    InvalidConfiguration,
    read_documents,
    read_text,
    validate,
)
from app.config.receiver_rules import NO_RULES, ReceiverRules
from app.definitions.files import Unread, Weight, contents_of, find
from app.dispatch.definition_checks import problem_at, value_at
from app.dispatch.definition_kind import WORKLOAD
from app.failover.definition_kind import FAILOVER
from app.failover.topology import Layout
from app.kernel.json_types import JsonObject
from app.replicate.definition_kind import ROUTE

KINDS: tuple[DefinitionKind[Any], ...] = (WORKLOAD, ROUTE, FAILOVER, AUDIT_PLAN, ALERT)
_BY_NAME = {kind.name: kind for kind in KINDS}

API_VERSION = "switchyard/v1"
READ_TRIES, READ_AGAIN_S = 3, 0.2  # while a ConfigMap is swapped
OR_EMPTY = "; --allow-empty takes it as it is"


def json_schema() -> JsonObject:
    """The JSON Schema of all kinds."""
    roots, schema = models_json_schema(
        [(kind.model, "validation") for kind in KINDS], by_alias=True, title="Switchyard definitions"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "oneOf": list(roots.values()),
        **schema,
    }


def parse(
    kind: DefinitionKind[D],
    data: Any,
    *,
    clusters: Collection[str] | None = None,
    layout: Layout | None = None,
    receivers: ReceiverRules = NO_RULES,
    file: str = "",
    node: Any = None,
) -> tuple[D, list[ConfigProblem]]:
    """A definition from plain data (a YAML document, a PUT's body), and its warnings.

    Other definitions are not compared. `clusters`, `layout` and `receivers`: see `KnownPlaces`. `file` and
    `node`: see `Document`.

    Raises:
        InvalidConfiguration: The data has errors; the exception has all of them.
    """
    if not isinstance(data, Mapping):
        remedy = f"begin with apiVersion: {API_VERSION}"
        raise InvalidConfiguration([ConfigProblem("a definition must be a mapping", remedy, file=file)])
    document = Document(file, data, node)
    problems: list[ConfigProblem] = []
    definition: D | None = None
    try:
        definition = validate(kind.model, document)
    except InvalidConfiguration as error:
        problems += error.problems
    problems += kind.check(document, definition, KnownPlaces(clusters, layout, receivers))
    problems += [] if definition is None else _too_large(document, definition.to_wire())
    warnings = [problem for problem in problems if problem.severity == "warning"]
    if definition is None or len(warnings) < len(problems):
        raise InvalidConfiguration(problems)
    return definition, warnings


def _too_large(document: Document, wire: JsonObject) -> Iterable[ConfigProblem]:
    """The problem of a definition that is larger than the control log takes, at its largest field."""
    size = len(orjson.dumps(wire))
    if size <= MAX_DEFINITION_BYTES:
        return
    sizes = {field: len(orjson.dumps(value)) for field, value in wire["spec"].items()}
    largest = max(sizes, key=sizes.__getitem__)
    yield problem_at(
        document,
        ("spec", largest),
        f"the definition has {size} bytes as JSON, {sizes[largest]} of them here; at most"
        f" {MAX_DEFINITION_BYTES} bytes are taken",
        "shorten it, or divide it into several definitions",
    )


parse_definition = partial(parse, WORKLOAD)
parse_route = partial(parse, ROUTE)
parse_failover = partial(parse, FAILOVER)
parse_audit = partial(parse, AUDIT_PLAN)
parse_alert = partial(parse, ALERT)


def parse_any(
    data: Any,
    *,
    clusters: Collection[str] | None = None,
    layout: Layout | None = None,
    receivers: ReceiverRules = NO_RULES,
    file: str = "",
    node: Any = None,
) -> tuple[Definition, list[ConfigProblem]]:
    """A definition of the kind that `data` names, or names nearly. As `parse`."""
    named = data.get("kind") if isinstance(data, Mapping) else None
    (name,) = difflib.get_close_matches(str(named), _BY_NAME, 1, 0.5) or [WORKLOAD.name]
    found: tuple[Definition, list[ConfigProblem]]
    found = parse(
        _BY_NAME[name], data, clusters=clusters, layout=layout, receivers=receivers, file=file, node=node
    )
    return found


def load_definitions(
    sources: Sequence[str | Path],
    *,
    clusters: Collection[str] | None = None,
    layout: Layout | None = None,
    receivers: ReceiverRules = NO_RULES,
    prune: bool = False,
    may_be_empty: bool = False,
) -> tuple[list[Definition], list[ConfigProblem]]:
    """The definitions of files and folders (`app.definitions.files`), and their warnings.

    Args:
        prune: A deployment will delete everything else, so no file that looks like a definition may be
            ignored.
        may_be_empty: Accept a file or folder without definitions.

    Raises:
        InvalidConfiguration: Some files have errors; the exception has all of them.
    """
    problems: list[ConfigProblem] = []
    documents = _read(sources, problems, prune=prune, may_be_empty=may_be_empty)
    problems += _twice(documents)
    found: list[tuple[Document, Definition]] = []
    for document in documents:
        try:
            definition, warnings = parse_any(
                document.data, clusters=clusters, layout=layout, receivers=receivers,
                file=document.file, node=document.node,
            )  # fmt: skip
        except InvalidConfiguration as error:
            problems += error.problems
        else:
            found.append((document, definition))
            problems += warnings
    for kind in KINDS:
        problems += kind.check_together([one for one in found if isinstance(one[1], kind.model)])
    if any(problem.severity == "error" for problem in problems):
        raise InvalidConfiguration(problems)
    return [definition for _, definition in found], problems


def _read(
    sources: Sequence[str | Path], problems: list[ConfigProblem], *, prune: bool, may_be_empty: bool
) -> list[Document]:
    """The documents of all files, each file once; problems go to `problems`.

    Files of a ConfigMap that is swapped meanwhile would belong to two deployments, so they are read again.
    """
    for tries_left in reversed(range(READ_TRIES)):
        wrong: list[ConfigProblem] = []
        documents, contents = _read_once(sources, wrong, prune=prune, may_be_empty=may_be_empty)
        is_swapped = any(contents_of(folder) != led_to for folder, led_to in contents.items())
        may_be_swapped = is_swapped or (contents and any(one.severity == "error" for one in wrong))
        if not (may_be_swapped and tries_left):
            break
        time.sleep(READ_AGAIN_S)
    problems += wrong
    return documents


def _read_once(
    sources: Sequence[str | Path], problems: list[ConfigProblem], *, prune: bool, may_be_empty: bool
) -> tuple[list[Document], dict[Path, str]]:
    """The documents as in `_read`, and where the contents of ConfigMaps were."""
    documents: list[Document] = []
    read: set[str] = set()
    unread: dict[str, Unread] = {}
    contents: dict[Path, str] = {}
    for source in map(Path, sources):
        files = [source]
        if source.is_dir():
            found = find(source)
            files = found.files
            contents |= found.contents
            unread |= {os.path.realpath(one.path): one for one in found.unread}
            if not files and not may_be_empty:
                what = "has no .yaml, .yml or .json file"
                problems.append(ConfigProblem(what, f"name another folder{OR_EMPTY}", file=str(source)))
        for file in files:
            if (real := os.path.realpath(file)) in read:
                continue
            read.add(real)
            try:
                of_file = read_documents(read_text(file, "check the path"), str(file))
            except InvalidConfiguration as error:
                problems += error.problems
                continue
            documents += of_file
            if not of_file and not may_be_empty:
                remedy = f"see what should have written it, or remove it{OR_EMPTY}"
                problems.append(ConfigProblem("defines nothing", remedy, file=str(file)))
    problems += [_unread(one, prune=prune) for real, one in unread.items() if real not in read]
    return documents, contents


def _unread(one: Unread, *, prune: bool) -> ConfigProblem:
    is_refused = one.weight is Weight.WRONG or (prune and one.weight is Weight.DOUBTFUL)
    remedy = "definitions end with .yaml, .yml or .json, and do not begin with a dot"
    if is_refused and prune:
        remedy = "--prune would delete what it defines: mend or rename it, or move it away"
    elif is_refused:
        remedy = "mend it, or move it away"
    severity = "error" if is_refused else "warning"
    return ConfigProblem(one.why, remedy, file=str(one.path), severity=severity)


def _twice(documents: Sequence[Document]) -> Iterable[ConfigProblem]:
    """Problems for things that are defined twice. Names alone decide, so that other errors hide none."""
    first: dict[tuple[str, ...], Document] = {}
    for document in documents:
        kind = _BY_NAME.get(str(value_at(document.data, ("kind",))), WORKLOAD)
        named = kind.named_by
        names = [value_at(document.data, ("metadata", name)) for name in named]
        if not all(isinstance(n, str) for n in names):
            continue
        before = first.setdefault((kind.name, *names), document)
        if before is not document:
            line, _ = before.position(("metadata",), key=True)
            yield problem_at(
                document,
                ("metadata", named[-1]),
                f"{'/'.join(names)} is defined twice, first at {before.file}:{line}",
                "remove one",
            )
