"""Common parts of requests that create, change or delete definitions: bodies, conditions (RFC 9110, 13.1),
dry runs.

A change counts only if the definition that it replaces is still current. This module compares the
conditions for a clear answer; the fold of the control log compares them again at the change's position in
the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

import msgspec
import orjson
import structlog
from aiohttp import web
from aiokafka.errors import KafkaError

from app.config.definition_base import MAX_DEFINITION_BYTES
from app.config.problems import Document, read_documents
from app.controllog.events import ALL, AnyControlEvent, AnyPut, DefinitionPut, Paused, deletion_of
from app.kafka.client.cluster import ClusterClient, ClusterUnreachable
from app.kafka.client.topics import INVALID_NAME, TopicRefused
from app.kernel.clock import now_ms
from app.kernel.json_types import JsonObject
from app.kernel.topic_names import NAME_REFUSED
from app.web.http import schemas
from app.web.http.context import ApiContext
from app.web.http.operator_requests import actor_of
from app.web.http.responses import ApiError, json_response, paged
from app.web.http.route_docs import JSON, TEXT, AnswerDoc, Param

if TYPE_CHECKING:
    from app.config.definition_base import Definition
    from app.definitions.plan import DefinitionsPlan

log = structlog.get_logger(__name__)

T = TypeVar("T")

TRIES = 10
CHECK_TIMEOUT_S = 5.0  # an unreachable cluster delays a deployment for this long at most,
AWAY_S = 10.0  # and gets no further request for this long: a deployment may have many definitions
YAML = ("application/yaml", "application/x-yaml", "text/yaml")
DRY_RUN = (Param("dry_run", {"type": "boolean", "default": False}, "only check it"),)
MAX_PAGE_BYTES = 4 * 1024 * 1024  # of the definitions in a page of a list
DEFINITIONS = Param("definitions", {"type": "boolean", "default": False}, "also each one's definition")
MATCH = (
    Param("If-Match", TEXT, "only while the definition has (one of) these ETags; *: while there is one"),
    Param("If-None-Match", TEXT, "only while it has none of these; *: while there is none"),
)


def paged_definitions(puts: Iterable[AnyPut], request: web.Request) -> JsonObject:
    """As `paged`, by key; a page ends before its definitions have more than `MAX_PAGE_BYTES`. Raises
    ApiError."""
    page = paged(sorted(puts, key=lambda put: put.key), request)
    total = 0
    for count, put in enumerate(page["items"]):
        total += len(orjson.dumps(put.definition))
        if count and total > MAX_PAGE_BYTES:
            page["items"] = page["items"][:count]
            page["next"] = str(int(request.query.get("cursor", "0")) + count)
            break
    return page


async def ask_cluster(
    api: ApiContext, cluster: str, ask: Callable[[ClusterClient], Awaitable[T]]
) -> T | None:
    """The cluster's answer; None: it does not answer."""
    if time.monotonic() < api.away_until_s.get(cluster, float("-inf")):
        return None
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await ask((await api.runtime.clusters.get(cluster)).client)
    except KafkaError as error:
        log.info("a cluster did not answer a check of a definition", cluster=cluster, error=repr(error))
    except (ClusterUnreachable, TimeoutError, OSError) as error:
        api.away_until_s[cluster] = time.monotonic() + AWAY_S
        log.info("a cluster did not answer a check of a definition", cluster=cluster, error=repr(error))
    return None


async def unmade_topics(
    api: ApiContext, cluster: str, ask: Callable[[ClusterClient], Awaitable[list[TopicRefused]]], remedy: str
) -> list[str]:
    """Warnings about topics that `cluster` would refuse to create.

    `ask` gets them; `remedy` is for a refused name. A cluster that does not answer gives no warning; the
    worker reports a refusal later.

    Raises:
        ApiError: The name of a topic collides with an existing one.
    """
    refused = await ask_cluster(api, cluster, ask) or []
    for one in refused:
        if one.code == INVALID_NAME:
            raise ApiError(409, NAME_REFUSED, f"{one}; {remedy}")
    return [f"{one}; {one.remedy}" for one in refused]


def put_answers(what: str) -> dict[int, AnswerDoc]:
    """The answers of a PUT of a definition."""
    answers = {200: "changed, as it was, or a dry run", 201: f"there is a new {what}"}
    return {status: AnswerDoc({JSON: schemas.Put}, about, ("ETag",)) for status, about in answers.items()}


async def append(api: ApiContext, event: AnyControlEvent) -> None:
    """Appends the event to the control log. Raises ApiError when it did not count, because another change
    came first."""
    control = api.runtime.control
    if not control.counted(await control.append(event)):
        raise ApiError(
            412, "Changed meanwhile", "another request changed it at the same moment; read it, then decide"
        )


async def _write(api: ApiContext, event: AnyPut, expected: str | None) -> None:
    """Writes a change of the current definition; without a condition, of any definition that is current by
    then."""
    control = api.runtime.control
    for _ in range(TRIES):
        change = control.view.replacing(event, uuid4().hex)
        if expected is not None:
            return await append(api, msgspec.structs.replace(change, expected=expected))
        if control.counted(await control.append(change)):
            return None
    raise ApiError(409, "Changed at once", "other requests change it all the time; try again")


async def define(
    api: ApiContext,
    request: web.Request,
    kind: type[AnyPut],
    definition: Definition,
    current: DefinitionPut | None,
    expected: str | None,
    planned: DefinitionsPlan,
    *,
    dry_run: bool,
) -> JsonObject:
    """Writes a definition, if it changes anything; returns the answer. Raises ApiError on conflicts."""
    if planned.conflicts:
        raise ApiError(409, "Conflict", "; ".join(planned.conflicts))
    key, etag = definition.key, definition.etag()
    changed = current is None or current.etag != etag
    if changed and not dry_run:
        event = kind(
            at_ms=now_ms(), key=key, definition=definition.to_wire(), etag=etag, actor=actor_of(request)
        )  # fmt: skip
        await _write(api, event, expected)
    return {"key": key, "etag": etag, "changed": changed, "dry_run": dry_run,
            "warnings": list(planned.warnings), "doubts": [], "topics": []}  # fmt: skip


def defined(
    answer: JsonObject,
    warnings: Iterable[object],
    current: DefinitionPut | None,
    doubts: Iterable[str] = (),
) -> web.Response:
    """The response to a PUT: 201 for what was not there before; `warnings` of the document come first.
    `doubts` are warnings that only a worker can have."""
    answer["doubts"] = [*doubts]
    answer["warnings"] = [*map(str, warnings), *answer["warnings"], *answer["doubts"]]
    created = current is None and not answer["dry_run"]
    return json_response(answer, 201 if created else 200, {"ETag": f'"{answer["etag"]}"'})


async def delete(api: ApiContext, request: web.Request, put: DefinitionPut) -> web.Response:
    """Deletes what `put` defined; the response. Raises ApiError."""
    actor, at_ms, expected = actor_of(request), now_ms(), condition(request, put)
    was_paused = put.key in api.runtime.control.view.paused
    await append(api, deletion_of(put)(at_ms=at_ms, key=put.key, actor=actor, expected=expected))
    if was_paused:
        # Compaction may drop the deletion, and a pause must not come back with the next definition.
        await append(api, Paused(at_ms=at_ms, key=put.key, partition=ALL, paused=False, actor=actor))
    return json_response({"key": put.key, "deleted": True})


async def read_definition(request: web.Request) -> Document:
    """The one definition that the body is. Raises ApiError, InvalidConfiguration."""
    try:
        raw = await request.clone(client_max_size=MAX_DEFINITION_BYTES).read()
    except web.HTTPRequestEntityTooLarge as error:
        detail = (
            f"the definition is too large; at most {MAX_DEFINITION_BYTES} bytes are taken; divide it into "
            "several definitions"
        )
        raise ApiError(413, HTTPStatus(413).phrase, detail) from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ApiError(400, "Not UTF-8", f"the body is not UTF-8 (byte {error.start})") from error
    # YAML is read by a patient parser: away from the loop that pushes messages.
    documents = await asyncio.to_thread(read_documents, text, "body")
    if len(documents) != 1:
        raise ApiError(400, "Bad body", f"the body must be one definition, it has {len(documents)}")
    return documents[0]


def check_address(request: web.Request, name: str) -> None:
    """Raises ApiError when the address of the request names another definition than `name`."""
    if name != (addressed := request.match_info["name"]):
        detail = f"the definition is of {name}, the address of {addressed[:100]}"
        raise ApiError(422, "Wrong address", detail)


def condition(request: web.Request, current: DefinitionPut | None) -> str | None:
    """The etag of the definition that a conditional change replaces, "" for none; None without a condition.

    Raises:
        ApiError: The condition does not hold.
    """
    given = {name: ",".join(request.headers.getall(name, [])) for name in ("If-Match", "If-None-Match")}
    if current is None and given["If-Match"]:
        raise ApiError(412, "Not there", "If-Match: there is no such definition any more; read, then decide")
    if current is not None and given["If-Match"] and not _names(given["If-Match"], current.etag):
        raise ApiError(
            412, "Changed meanwhile", f"the definition's ETag is {current.etag}; read it again, then decide"
        )
    if current is not None and given["If-None-Match"] and _names(given["If-None-Match"], current.etag):
        raise ApiError(412, "There already", f"If-None-Match: {current.key} is there; read it, then decide")
    if not any(given.values()):
        return None
    return "" if current is None else current.etag


def _names(tags: str, etag: str) -> bool:
    """Whether `tags` name `etag`; also as a weak one, which it becomes in a gateway that compresses."""
    return tags.strip() == "*" or etag in {
        tag.strip().removeprefix("W/").strip('"') for tag in tags.split(",")
    }
