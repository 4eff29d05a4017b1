"""Definitions: what runs, kept in the control log and changed live. Today: `Workload`.

The whole shape of a workload is accepted and checked; what is not in force yet is said so: as a warning
where ignoring it is harmless, as an error where a user would rely on it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from app.config.checks import checks, problem_at, value_at
from app.config.problems import Document, InvalidConfiguration, Problem, read_documents, read_text, validate
from app.config.workload import Workload

__all__ = ["Workload", "json_schema", "load_definitions", "parse_definition"]

API_VERSION = "switchyard/v1"
LATER_KINDS = ("Route", "AuditPlan", "Alert", "Failover")
MAX_TOPIC_CHARS = 249  # Kafka's own limit


def json_schema() -> dict[str, Any]:
    """The JSON Schema of all kinds there are."""
    roots, schema = models_json_schema(
        [(Workload, "validation")], by_alias=True, title="Switchyard definitions"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "oneOf": list(roots.values()),
        **schema,
    }


def parse_definition(
    data: Any, *, clusters: Collection[str] | None = None, file: str = "", node: Any = None
) -> tuple[Workload, list[Problem]]:
    """A workload of plain data (a YAML document, a PUT's body), and the warnings about it.

    Raises:
        InvalidConfiguration: with everything that is wrong.
    """
    document = Document(file, data, node)
    if not isinstance(data, Mapping):
        raise InvalidConfiguration(
            [Problem("a definition must be a mapping", f"begin with apiVersion: {API_VERSION}", file=file)]
        )
    kind = data.get("kind")
    if kind in LATER_KINDS:
        raise InvalidConfiguration(
            [problem_at(document, ("kind",), "comes with a later release", "leave it out for now")]
        )
    problems: list[Problem] = []
    workload: Workload | None = None
    try:
        workload = validate(Workload, document)
    except InvalidConfiguration as error:
        problems += error.problems
    problems += checks(document, clusters)
    if (
        workload is not None
        and len(max([*workload.retry_topics(), workload.dlq_topic(), workload.delayed_topic()], key=len))
        > MAX_TOPIC_CHARS
    ):
        problems.append(
            problem_at(
                document,
                ("metadata", "topic"),
                f"with the group's, the names of retry topics and DLQ exceed {MAX_TOPIC_CHARS} characters",
                "shorten the group's name",
            )
        )
    warnings = [problem for problem in problems if problem.severity == "warning"]
    if workload is None or len(warnings) < len(problems):
        raise InvalidConfiguration(problems)
    return workload, warnings


def load_definitions(
    sources: Sequence[str | Path], *, clusters: Collection[str] | None = None
) -> tuple[list[Workload], list[Problem]]:
    """The definitions of files and folders (*.yaml, *.yml, *.json), and the warnings about them.

    Raises:
        InvalidConfiguration: with everything that is wrong in all of them.
    """
    problems: list[Problem] = []
    documents = _read(sources, problems)
    problems += _twice(documents)
    workloads: list[Workload] = []
    for document in documents:
        try:
            workload, warnings = parse_definition(
                document.data, clusters=clusters, file=document.file, node=document.node
            )
        except InvalidConfiguration as error:
            problems += error.problems
        else:
            workloads.append(workload)
            problems += warnings
    if any(problem.severity == "error" for problem in problems):
        raise InvalidConfiguration(problems)
    return workloads, problems


def _read(sources: Sequence[str | Path], problems: list[Problem]) -> list[Document]:
    """The documents of all files, each file once; what cannot be read goes to `problems`."""
    documents: list[Document] = []
    seen: set[Path] = set()
    for source in sources:
        path = Path(source)
        files = (
            sorted(f for f in path.rglob("*") if f.suffix in {".yaml", ".yml", ".json"})
            if path.is_dir()
            else [path]
        )
        if not files:
            problems.append(
                Problem("has no .yaml, .yml or .json file", "name another folder", file=str(path))
            )
        for file in files:
            if file.resolve() in seen:
                continue
            seen.add(file.resolve())
            try:
                documents += read_documents(read_text(file, "check the path"), str(file))
            except InvalidConfiguration as error:
                problems += error.problems
    return documents


def _twice(documents: Sequence[Document]) -> Iterable[Problem]:
    """The same workload defined again; by its name alone, so that other mistakes in it hide nothing."""
    first: dict[tuple[str, str], Document] = {}
    for document in documents:
        names = [value_at(document.data, ("metadata", name)) for name in ("group", "topic")]
        if value_at(document.data, ("kind",)) in LATER_KINDS or not all(isinstance(n, str) for n in names):
            continue
        group, topic = names
        before = first.setdefault((group, topic), document)
        if before is not document:
            line, _ = before.position(("metadata",), key=True)
            yield problem_at(
                document,
                ("metadata", "topic"),
                f"{group}/{topic} is defined twice, first at {before.file}:{line}",
                "remove one",
            )
