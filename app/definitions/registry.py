"""Definitions: `Workload`, `Route`, `AuditPlan`, `Alert` and `Failover`, kept in the control log and
changed while workers run.

All fields are accepted and checked. A field that has no effect yet gives a warning where that is harmless,
and an error where a user would rely on it.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic.json_schema import models_json_schema

from app.alerts.definition import AlertDefinition
from app.alerts.definition_checks import alert_checks
from app.audit.definition import AuditPlan
from app.audit.definition_checks import audit_checks
from app.config.problems import (
    ConfigProblem,
    Document,
    InvalidConfiguration,
    read_documents,
    read_text,
    validate,
)
from app.definitions.files import Unread, Weight, contents_of, find
from app.dispatch.definition import Workload
from app.dispatch.definition_checks import checks, problem_at, value_at
from app.failover.definition import FailoverDefinition
from app.failover.definition_checks import failover_checks
from app.failover.topology import Layout
from app.kernel.job import MAX_TOPIC_CHARS
from app.replicate.definition import RouteDefinition
from app.replicate.definition_checks import between_routes, route_checks
from app.replicate.model.route import Route

__all__ = ["AlertDefinition", "AnyDefinition", "AuditPlan", "FailoverDefinition", "RouteDefinition",
           "Workload", "json_schema", "load_definitions", "parse_alert", "parse_any", "parse_audit",
           "parse_definition", "parse_failover", "parse_route"]  # fmt: skip

AnyDefinition = Workload | RouteDefinition | FailoverDefinition | AuditPlan | AlertDefinition
T = TypeVar("T", Workload, RouteDefinition, FailoverDefinition, AuditPlan, AlertDefinition)

API_VERSION = "switchyard/v1"
KINDS = ("Workload", "Route", "AuditPlan", "Alert", "Failover")
READ_TRIES, READ_AGAIN_S = 3, 0.2  # while a ConfigMap is swapped
OR_EMPTY = "; --allow-empty takes it as it is"
NAMED = ("Route", "AuditPlan", "Alert", "Failover")  # by metadata.name


def json_schema() -> dict[str, Any]:
    """The JSON Schema of all kinds."""
    roots, schema = models_json_schema(
        [
            (kind, "validation")
            for kind in (Workload, RouteDefinition, FailoverDefinition, AuditPlan, AlertDefinition)
        ],
        by_alias=True,
        title="Switchyard definitions",
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "oneOf": list(roots.values()),
        **schema,
    }


def parse_definition(
    data: Any,
    *,
    clusters: Collection[str] | None = None,
    layout: Layout | None = None,
    file: str = "",
    node: Any = None,
) -> tuple[Workload, list[ConfigProblem]]:
    """A workload from plain data (a YAML document, a PUT's body), and its warnings.

    Raises:
        InvalidConfiguration: The data has errors; the exception has all of them.
    """
    return _workload(_document(data, file, node), clusters, layout)


def parse_route(
    data: Any, *, clusters: Collection[str] | None = None, file: str = "", node: Any = None
) -> tuple[RouteDefinition, list[ConfigProblem]]:
    """A route from plain data, and its warnings, without a check against other routes.

    Raises:
        InvalidConfiguration: The data has errors.
    """
    return _route(_document(data, file, node), clusters)


def parse_failover(
    data: Any, *, layout: Layout | None = None, file: str = "", node: Any = None
) -> tuple[FailoverDefinition, list[ConfigProblem]]:
    """A failover definition from plain data, and its warnings, without a check of the routes that it makes.

    Raises:
        InvalidConfiguration: The data has errors.
    """
    return _failover(_document(data, file, node), layout)


def parse_audit(
    data: Any, *, layout: Layout | None = None, file: str = "", node: Any = None
) -> tuple[AuditPlan, list[ConfigProblem]]:
    """An audit plan from plain data, and its warnings.

    Raises:
        InvalidConfiguration: The data has errors.
    """
    return _audit(_document(data, file, node), layout)


def parse_alert(
    data: Any, *, file: str = "", node: Any = None
) -> tuple[AlertDefinition, list[ConfigProblem]]:
    """An alert from plain data, and its warnings.

    Raises:
        InvalidConfiguration: The data has errors.
    """
    return _alert(_document(data, file, node))


def parse_any(
    data: Any,
    *,
    clusters: Collection[str] | None = None,
    layout: Layout | None = None,
    file: str = "",
    node: Any = None,
) -> tuple[AnyDefinition, list[ConfigProblem]]:
    """A definition of the kind that `data` names, and its warnings.

    Raises:
        InvalidConfiguration: The data has errors.
    """
    document = _document(data, file, node)
    match difflib.get_close_matches(str(data.get("kind")), KINDS, 1, 0.5):
        case ["Route"]:
            return _route(document, clusters)
        case ["Failover"]:
            return _failover(document, layout)
        case ["AuditPlan"]:
            return _audit(document, layout)
        case ["Alert"]:
            return _alert(document)
        case _:
            return _workload(document, clusters, layout)


def _document(data: Any, file: str, node: Any) -> Document:
    if not isinstance(data, Mapping):
        raise InvalidConfiguration(
            [
                ConfigProblem(
                    "a definition must be a mapping", f"begin with apiVersion: {API_VERSION}", file=file
                )
            ]
        )
    return Document(file, data, node)


def _workload(
    document: Document, clusters: Collection[str] | None, layout: Layout | None
) -> tuple[Workload, list[ConfigProblem]]:
    problems: list[ConfigProblem] = []
    workload: Workload | None = _validated(Workload, document, problems)
    problems += checks(document, clusters, layout)
    if workload is not None and len(max(workload.own_topics(), key=len)) > MAX_TOPIC_CHARS:
        problems.append(
            problem_at(
                document,
                ("metadata", "topic"),
                f"with the group's, the names of retry topics and DLQ exceed {MAX_TOPIC_CHARS} characters",
                "shorten the group's name",
            )
        )
    return _sound(workload, problems)


def _route(
    document: Document, clusters: Collection[str] | None
) -> tuple[RouteDefinition, list[ConfigProblem]]:
    problems: list[ConfigProblem] = []
    route: RouteDefinition | None = _validated(RouteDefinition, document, problems)
    problems += route_checks(document, route, clusters)
    return _sound(route, problems)


def _failover(document: Document, layout: Layout | None) -> tuple[FailoverDefinition, list[ConfigProblem]]:
    problems: list[ConfigProblem] = []
    failover: FailoverDefinition | None = _validated(FailoverDefinition, document, problems)
    problems += failover_checks(document, failover, layout)
    return _sound(failover, problems)


def _audit(document: Document, layout: Layout | None) -> tuple[AuditPlan, list[ConfigProblem]]:
    problems: list[ConfigProblem] = []
    audit: AuditPlan | None = _validated(AuditPlan, document, problems)
    problems += audit_checks(document, audit, layout)
    return _sound(audit, problems)


def _alert(document: Document) -> tuple[AlertDefinition, list[ConfigProblem]]:
    problems: list[ConfigProblem] = []
    alert: AlertDefinition | None = _validated(AlertDefinition, document, problems)
    problems += alert_checks(document, alert)
    return _sound(alert, problems)


def _validated(model: type[T], document: Document, problems: list[ConfigProblem]) -> T | None:
    try:
        found: T = validate(model, document)
    except InvalidConfiguration as error:
        problems += error.problems
        return None
    return found


def _sound(definition: T | None, problems: list[ConfigProblem]) -> tuple[T, list[ConfigProblem]]:
    """The definition and its warnings. Raises InvalidConfiguration when there are errors."""
    warnings = [problem for problem in problems if problem.severity == "warning"]
    if definition is None or len(warnings) < len(problems):
        raise InvalidConfiguration(problems)
    return definition, warnings


def load_definitions(
    sources: Sequence[str | Path],
    *,
    clusters: Collection[str] | None = None,
    layout: Layout | None = None,
    prune: bool = False,
    may_be_empty: bool = False,
) -> tuple[list[AnyDefinition], list[ConfigProblem]]:
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
    found: list[AnyDefinition] = []
    routes: dict[str, tuple[Document, Route]] = {}
    for document in documents:
        try:
            definition, warnings = parse_any(
                document.data, clusters=clusters, layout=layout, file=document.file, node=document.node
            )
        except InvalidConfiguration as error:
            problems += error.problems
        else:
            found.append(definition)
            problems += warnings
            if isinstance(definition, RouteDefinition):
                routes.setdefault(definition.key, (document, definition.route()))
    problems += between_routes(list(routes.values()))
    if any(problem.severity == "error" for problem in problems):
        raise InvalidConfiguration(problems)
    return found, problems


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
        kind = value_at(document.data, ("kind",))
        named = ("name",) if kind in NAMED else ("group", "topic")
        names = [value_at(document.data, ("metadata", name)) for name in named]
        if not all(isinstance(n, str) for n in names):
            continue
        place = [*names, kind] if kind in NAMED[1:] else names  # a route may have the same name
        before = first.setdefault(tuple(place), document)
        if before is not document:
            line, _ = before.position(("metadata",), key=True)
            yield problem_at(
                document,
                ("metadata", named[-1]),
                f"{'/'.join(names)} is defined twice, first at {before.file}:{line}",
                "remove one",
            )
