"""config validate|plan|deploy|diff|export|schema: definitions from files to the control log."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import replace
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import click
import orjson
from pydantic import ValidationError

from app.cli.client import (
    EXIT_CHANGES,
    EXIT_NOT_FOUND,
    EXIT_PARTIAL,
    EXIT_PRECONDITION,
    Client,
    CommandFailure,
    guarded,
)
from app.cli.output import emit, output_option, url_option
from app.config.definition_base import Definition
from app.config.definition_kind import DefinitionChange, DefinitionKind
from app.config.problems import ConfigProblem, Document, InvalidConfiguration, first_wrong
from app.config.receiver_rules import NO_RULES
from app.config.settings import DEFAULT_FILE, Settings, load_settings
from app.definitions.plan import DefinitionsPlan, UnreadableDefinition, plan
from app.definitions.registry import KINDS, json_schema, load_definitions
from app.definitions.schema_checks import check_schemas
from app.dispatch.definition_kind import WORKLOAD
from app.kernel.json_types import JsonObject
from app.kernel.topic_names import NAME_REFUSED
from app.payload.schema_loader import SchemaLoader
from app.replicate.definition import RouteDefinition
from app.replicate.definition_checks import RemoteRoute, beside_of
from app.replicate.model.copy_graph import ALONE, OtherRegions

# While other deployments change definitions: how often a plan or a change is tried, and the pause.
TRIES, TRY_AGAIN_S = 3, 0.2
FILES = click.option("-f", "--file", "files", multiple=True, required=True, metavar="PATH",
                     help="A file or folder of definitions; may be given several times.")  # fmt: skip
TAKE_OVER = click.option(
    "--take-over", is_flag=True, help="Deploy a new workload although its group has other consumers."
)
PRUNE = click.option(
    "--prune", is_flag=True,
    help="Also delete what the files do not define. Refused where a file looks like a definition but is not"
    " read, or where much would be deleted (--allow-empty).",
)  # fmt: skip
ALLOW_EMPTY = click.option(
    "--allow-empty", is_flag=True,
    help="Files may define nothing; --prune may delete all of a kind, or more than half of everything.",
)  # fmt: skip


@click.group()
def config() -> None:
    """Definitions: check them, see what would change, deploy them.

    \b
    switchyard config validate -f workloads/
    switchyard config plan -f workloads/
    switchyard config deploy -f workloads/ --execute
    """


def _load(
    files: tuple[str, ...],
    settings: Settings | None = None,
    *,
    prune: bool = False,
    allow_empty: bool = False,
) -> list[Definition]:
    rules = NO_RULES if settings is None else settings.receiver_rules
    # A file without credentials may be that of another machine than the workers'.
    rules = rules._replace(credentials=rules.credentials or None, tokens=rules.tokens or None)
    definitions, warnings = load_definitions(
        files,
        clusters=None if settings is None else settings.cluster_names(),
        layout=None if settings is None else settings.layout(),
        receivers=rules,
        prune=prune,
        may_be_empty=allow_empty,
    )
    for warning in warnings:
        click.echo(str(warning), err=True)
    return definitions


@config.command()
@FILES
@click.option("--allow-empty", is_flag=True, help="Files may define nothing.")
@guarded
def validate(files: tuple[str, ...], allow_empty: bool) -> None:
    """Checks files without a worker. Exit code 3 when there are errors; the output has all of them.

    Clusters, regions and what `receivers` has are checked when switchyard.yaml is here and has them, or
    SWITCHYARD_CONFIG names one.

    \b
    switchyard config validate -f billing.yaml
    """
    file = Path(os.environ.get("SWITCHYARD_CONFIG") or DEFAULT_FILE)
    settings = load_settings(file) if file.exists() else None
    definitions = _load(files, settings, allow_empty=allow_empty)
    unchecked = f"; clusters were not checked: there is no {file}" if settings is None else ""
    if settings is not None and settings.schemas_path.is_dir():
        asyncio.run(_check_schemas(definitions, settings.schemas_path))
    click.echo(
        f"{len(definitions)} definition{'s' if len(definitions) != 1 else ''}: all valid{unchecked}", err=True
    )


async def _check_schemas(definitions: list[Definition], folder: Path) -> None:
    """Prints warnings. Raises InvalidConfiguration, with the problems of all definitions."""
    schemas = SchemaLoader(folder)
    problems: list[ConfigProblem] = []
    try:
        for one in definitions:
            try:
                for doubt in await check_schemas(one, schemas, Document(one.key, None, None)):
                    click.echo(f"warning: {one.key}: {doubt}", err=True)
            except InvalidConfiguration as error:
                problems += error.problems
    finally:
        schemas.close()
    if problems:
        raise InvalidConfiguration(problems)


@config.command()
@click.option("--openapi", "of_api", is_flag=True, help="The OpenAPI document of the REST API instead.")
@guarded
def schema(of_api: bool) -> None:
    """The JSON Schema of definitions, for editors; or what clients of the REST API are made from.

    \b
    switchyard config schema > switchyard.schema.json
    switchyard config schema --openapi > switchyard.openapi.json
    """
    # By name: commands and console do not need each other, except for this page of documentation.
    whole = import_module("app.web.console.server").document() if of_api else json_schema()
    emit([], [], "json", whole=whole)


class _Current(NamedTuple):
    """All current definitions by key, except derived routes. No two have the same key."""

    definitions: dict[str, Definition]
    unreadable: dict[str, UnreadableDefinition]
    etags: dict[str, str]


def _current(client: Client) -> _Current:
    found = _Current({}, {}, {})
    for kind in KINDS:
        for item in _listed(client, kind):
            key = item["key"] if len(kind.named_by) > 1 else kind.prefix + item["name"]
            if item.get("made_by"):
                continue
            if "definition" not in item:  # a worker of a release whose lists have none
                item = client.ask("GET", kind.path(key))  # noqa: PLW2901
            _read(kind, key, item["definition"], item["etag"], found)
    return found


def _listed(client: Client, kind: DefinitionKind[Any]) -> list[Any]:
    try:
        query = "" if kind.is_listed_whole else "definitions=true"
        return client.all(kind.list_api or kind.api, query)
    except CommandFailure as failure:
        if failure.code != EXIT_NOT_FOUND or kind is WORKLOAD:  # every worker has workloads
            raise
        return []  # a worker of a release without this kind


def _read(kind: DefinitionKind[Any], key: str, data: Any, etag: str, current: _Current) -> None:
    """Puts one definition into `current`, also if it is unreadable."""
    current.etags[key] = etag
    try:
        current.definitions[key] = kind.read(data)
    except ValidationError as error:
        current.unreadable[key] = UnreadableDefinition(kind, data, first_wrong(error))
    except ValueError as error:
        current.unreadable[key] = UnreadableDefinition(kind, data, str(error))


def _beside(client: Client) -> OtherRegions:
    try:
        remote = client.ask("GET", "/routes-elsewhere")
    except CommandFailure as failure:
        if failure.code != EXIT_NOT_FOUND:
            raise
        return ALONE  # likewise
    return beside_of(remote["clusters"], [RemoteRoute(**one) for one in remote["routes"]])


def _address(change: DefinitionChange, **flags: bool) -> str:
    """The path and query of the change's PUT."""
    query = "&".join(f"{name}=true" for name, is_set in flags.items() if is_set)
    return change.kind.path(change.key) + (f"?{query}" if query else "")


def _plan(
    files: tuple[str, ...], url: str | None, prune: bool, allow_empty: bool, take_over: bool
) -> tuple[Client, DefinitionsPlan, _Current]:
    client = Client(url)
    wanted = _load(files, prune=prune, allow_empty=allow_empty)
    current = _current(client)
    beside = _beside(client) if any(isinstance(one, RouteDefinition) for one in wanted) else ALONE
    for tries_left in reversed(range(TRIES)):
        planned = plan(
            current.definitions,
            wanted,
            prune=prune,
            allow_empty=allow_empty,
            unreadable=current.unreadable,
            other_regions=beside,
            is_local=False,
            clusters=(),  # the worker knows them, and gets each change as a dry run next
        )
        try:
            foreseen = Foreseen([], []) if planned.conflicts else _foresee(client, planned, take_over)
            break
        except CommandFailure as failure:
            if failure.code != EXIT_PRECONDITION or not tries_left:
                raise
            before, current = current, _current(client)
            if current.etags == before.etags:
                raise
    warnings = (*planned.warnings, *foreseen.doubts)
    return client, replace(planned, warnings=warnings, topics=tuple(foreseen.topics)), current


class Foreseen(NamedTuple):
    """What the worker foresees of changes: warnings, and the topics that it would make, grow or alter."""

    doubts: list[str]
    topics: list[JsonObject]


def _foresee(client: Client, planned: DefinitionsPlan, take_over: bool) -> Foreseen:
    """Asks the worker about each change, as it knows the clusters. Raises CommandFailure."""
    found = Foreseen([], [])
    for change in planned.changes:
        definition = change.definition
        if definition is None or change.action not in {"create", "update"}:
            continue
        try:
            takes = take_over and change.kind.may_take_over
            address = _address(change, dry_run=True, take_over=takes)
            answer = client.ask("PUT", address, definition.to_wire())
        except CommandFailure as failure:
            # A conflict of one definition may end with the other changes of this plan.
            is_of_all = change.kind.are_planned_together and failure.code == EXIT_PRECONDITION
            if not is_of_all or failure.title == NAME_REFUSED:
                raise failure.of(change.name) from failure
            continue
        found.doubts.extend(f"{change.name}: {doubt}" for doubt in answer.get("doubts", ()))
        found.topics.extend(answer.get("topics", ()))
    unique = {tuple(sorted(topic.items())): topic for topic in found.topics}
    return found._replace(topics=[*unique.values()])


def _show(planned: DefinitionsPlan, output: str) -> None:
    rows: list[JsonObject] = []
    is_text = output in {"table", "csv"}
    missing = "" if is_text else None

    def add(action: str, name: str, field: str = "", old: object = "", new: object = "") -> None:
        old, new = (missing if value is None else value for value in (old, new))
        rows.append({"action": action, "workload": name, "field": field, "old": old, "new": new})

    for change in planned.changes:
        if not change.fields:
            add(change.action, change.name)
        for field in change.fields:
            add(change.action, change.name, *field)
    for one in planned.topics:
        new = "the default" if one["new"] is None and is_text else one["new"]
        add(one["action"], _topic_name(one), one["setting"], one["old"], new)
    emit(rows, ["action", "workload", "field", "old", "new"], output)
    _show_notes(planned)


def _topic_name(change: JsonObject) -> str:
    return f"topic {change['topic']} in {change['cluster']}"


def _show_notes(planned: DefinitionsPlan) -> None:
    """Prints warnings and conflicts."""
    for warning in planned.warnings:
        click.echo(f"warning: {warning}", err=True)
    for conflict in planned.conflicts:
        click.echo(f"conflict: {conflict}", err=True)


@config.command("plan")
@FILES
@PRUNE
@ALLOW_EMPTY
@TAKE_OVER
@url_option
@output_option
@guarded
def plan_command(
    files: tuple[str, ...], prune: bool, allow_empty: bool, take_over: bool, url: str | None, output: str
) -> None:
    """Shows what a deployment would change. Exit code 10 when there are changes, 0 when there are none.

    \b
    switchyard config plan -f workloads/ --prune
    """
    _, planned, _ = _plan(files, url, prune, allow_empty, take_over)
    _show(planned, output)
    if planned.conflicts:
        raise SystemExit(EXIT_PRECONDITION)
    raise SystemExit(0 if planned.empty else EXIT_CHANGES)


@config.command()
@FILES
@PRUNE
@ALLOW_EMPTY
@TAKE_OVER
@url_option
@output_option
@click.option("--execute", is_flag=True, help="Do it; without this, only the plan is shown.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@guarded
def deploy(
    files: tuple[str, ...],
    prune: bool,
    allow_empty: bool,
    take_over: bool,
    url: str | None,
    output: str,
    execute: bool,
    yes: bool,
) -> None:
    """Deploys definitions. A dry run until --execute; then asks unless --yes.

    \b
    switchyard config deploy -f workloads/                     # what would change
    switchyard config deploy -f workloads/ --execute --yes
    """
    client, planned, current = _plan(files, url, prune, allow_empty, take_over)
    _show(planned, output)
    if planned.conflicts:
        raise SystemExit(EXIT_PRECONDITION)
    if planned.empty:
        click.echo("nothing to change", err=True)
        return
    if not execute:
        click.echo("dry run: nothing was changed; add --execute to do it", err=True)
        return
    if not yes:
        if not sys.stdin.isatty():
            raise CommandFailure("standard input is no terminal to confirm on; add --yes", EXIT_PRECONDITION)
        click.confirm("Deploy this?", abort=True, err=True)
    done: list[str] = []
    rollout = _Rollout(client, current, take_over)
    for change in planned.changes:
        if change.action == "unchanged":
            continue
        try:
            is_ours = rollout.make(change)
        except CommandFailure as failure:
            if not done:
                raise failure.of(change.name) from failure
            raise CommandFailure(
                f"{change.name}: {failure}; before it, {len(done)} changed: {', '.join(done)}. "
                "Deploy again: changes that were made are not repeated", EXIT_PARTIAL,
            ) from failure  # fmt: skip
        if not is_ours:
            click.echo(f"unchanged {change.name}: another deployment {change.action}d it meanwhile", err=True)
            continue
        done.append(change.name)
        click.echo(f"{change.action}d {change.name}", err=True)


class _Rollout:
    """Makes the changes of a plan, while other deployments may make the same ones."""

    def __init__(self, client: Client, planned_from: _Current, take_over: bool) -> None:
        self._client = client
        self._etags = planned_from.etags
        self._seen = planned_from
        self._take_over = take_over

    def make(self, change: DefinitionChange) -> bool:
        """Makes one change, if its definition is still the planned one. False: another deployment made it.

        Raises:
            CommandFailure: The worker refuses the change, or another deployment made another one.
        """
        etag, tries_left = self._etags.get(change.key), TRIES
        while not _is_made(change, self._seen):
            try:
                self._send(change, etag)
                return True
            except CommandFailure as failure:
                if failure.code not in {EXIT_NOT_FOUND, EXIT_PRECONDITION}:
                    raise
                # Behind one address may be several workers, each with its own copy of the control log.
                time.sleep(TRY_AGAIN_S)
                self._seen, tries_left = _current(self._client), tries_left - 1
                if not _is_made(change, self._seen) and (
                    not tries_left or self._seen.etags.get(change.key) != etag
                ):
                    raise
        return False

    def _send(self, change: DefinitionChange, etag: str | None) -> None:
        headers = {"If-None-Match": "*"} if etag is None else {"If-Match": f'"{etag}"'}
        definition = change.definition
        if definition is None:
            self._client.ask("DELETE", change.kind.path(change.key), headers=headers)
        else:
            takes = self._take_over and change.kind.may_take_over
            self._client.ask("PUT", _address(change, take_over=takes), definition.to_wire(), headers)


def _is_made(change: DefinitionChange, current: _Current) -> bool:
    """Whether what the change wants is there."""
    if change.definition is None:
        return change.key not in current.etags
    found = current.definitions.get(change.key)
    return found is not None and found.to_wire() == change.definition.to_wire()


@config.command()
@FILES
@PRUNE
@ALLOW_EMPTY
@TAKE_OVER
@url_option
@guarded
def diff(files: tuple[str, ...], prune: bool, allow_empty: bool, take_over: bool, url: str | None) -> None:
    """Shows the plan as lines with - and +.

    \b
    switchyard config diff -f billing.yaml
    """
    _, planned, _ = _plan(files, url, prune, allow_empty, take_over)
    _show_notes(planned)
    for change in planned.changes:
        if change.action != "unchanged":
            click.echo(f"{change.action} {change.name}")
        for field in change.fields:
            for sign, value in (("-", field.old), ("+", field.new)):
                if value is not None:
                    click.echo(f"{sign} {field.field}: {orjson.dumps(value).decode()}")
    for name, changes in groupby(planned.topics, key=_topic_name):
        of_topic = list(changes)
        click.echo(f"{of_topic[0]['action']} {name}")
        for one in of_topic:
            for sign, value in (("-", one["old"]), ("+", one["new"])):
                if value is not None:
                    click.echo(f"{sign} {one['setting']}: {orjson.dumps(value).decode()}")
    if planned.conflicts:
        raise SystemExit(EXIT_PRECONDITION)
    raise SystemExit(0 if planned.empty else EXIT_CHANGES)


@config.command()
@url_option
@guarded
def export(url: str | None) -> None:
    """Writes every current definition as YAML that deploy accepts. Tools that read YAML 1.1 read it alike.

    Definitions that this version cannot read come last, unchanged. Deploy refuses them;
    a newer version accepts them.

    \b
    switchyard config export > definitions.yaml
    """
    from app.cli.yaml_output import yaml_writer

    yaml = yaml_writer()
    yaml.explicit_start = True
    current = _current(Client(url))
    for kind in KINDS:
        for _, definition in sorted(current.definitions.items()):
            if isinstance(definition, kind.model):
                yaml.dump(definition.to_wire(), sys.stdout)
    for key, unread in sorted(current.unreadable.items()):
        click.echo(f"warning: {key}: it cannot be read here: {unread.why}", err=True)
        yaml.dump(unread.data, sys.stdout)
