"""The REST side of definitions: read, defined, changed, deleted.

A change is made only if the one it replaces is still there: If-Match and If-None-Match (RFC 9110, 13.1) are
compared here for a clear answer, and by the fold of the control log at the change's own place in it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from app.clock import now_ms
from app.config.definitions import Workload, parse_definition
from app.config.plan import plan
from app.config.problems import Document, read_documents
from app.console import overview, shapes
from app.console.acts import actor_of
from app.console.answers import ApiError, json_response
from app.console.describe import ACTOR, JSON, TEXT, Answer, Param, described
from app.core.control_events import ALL, AnyControlEvent, Paused, WorkloadDeleted, WorkloadPut
from app.pump.chains import payload_codec

if TYPE_CHECKING:
    from app.console.api import Api

YAML = ("application/yaml", "application/x-yaml", "text/yaml")
DRY_RUN = (Param("dry_run", {"type": "boolean", "default": False}, "only check it"),)
MATCH = (
    Param("If-Match", TEXT, "only while the definition has (one of) these ETags; *: while there is one"),
    Param("If-None-Match", TEXT, "only while it has none of these; *: while there is none"),
)
PUT = {
    status: Answer({JSON: shapes.Put}, about, ("ETag",))
    for status, about in ((200, "changed, as it was, or a dry run"), (201, "there is a new workload"))
}


class WorkloadRoutes:
    """Handlers; `api` finds workloads and the runtime."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        """Everything there is."""
        workload = "/api/v1/workloads/{group}/{topic}"
        return [
            web.get(workload, self.get_workload),
            web.put(workload, self.put_workload),
            web.delete(workload, self.delete_workload),
        ]

    @described(answers={200: Answer({JSON: shapes.WorkloadDetail}, headers=("ETag",))}, problems=(404,))
    async def get_workload(self, request: web.Request) -> web.Response:
        """One workload: its definition, its partitions, and what holds it back, with the numbers."""
        put = self._api.put_of(request)
        live = self._api.runtime.members.live(time.monotonic())
        jobs = overview.Jobs(self._api.runtime.control.view, live, now_ms())
        body = {
            "definition": put.definition,
            "status": jobs.workload(put),
            "partitions": jobs.partitions(put.key),
            "flow": msgspec.to_builtins(jobs.flow(put)),
            "deployed": {"at_ms": put.at_ms, "by": put.actor},
        }
        return json_response(body, headers={"ETag": f'"{put.etag}"'})

    @described(
        answers=PUT, query=DRY_RUN, headers=(*MATCH, *ACTOR), body=Workload, kinds=(JSON, *YAML),
        problems=(409, 412, 422),
    )  # fmt: skip
    async def put_workload(self, request: web.Request) -> web.Response:
        """Defines or changes a workload; 201, or 200 when it was there. `?dry_run=true` only checks."""
        names, dry_run = self._api.runtime.clusters.specs.keys(), _flag(request, "dry_run")
        body = await self._body(request)
        workload, warnings = parse_definition(body.data, clusters=names, file=body.file, node=body.node)
        told = f"{request.match_info['group']}/{request.match_info['topic']}"
        if workload.key != told:
            raise ApiError(
                422, "Wrong address", f"the definition is of {workload.key}, the address of {told}"
            )
        try:
            await payload_codec(workload)
        except ValueError as error:  # as this worker sees the file; the others need it at the same path
            raise ApiError(422, "Payload descriptors cannot be used", str(error)) from error
        current = self._api.runtime.control.view.workloads.get(workload.key)
        expected = _condition(request, current)
        etag = workload.etag()
        catalog = self._api.runtime.catalog
        known = {key: w for key in self._api.runtime.control.view.workloads if (w := catalog.workload(key))}
        planned = plan(known, [workload])
        if planned.conflicts:
            raise ApiError(409, "Conflict", "; ".join(planned.conflicts))
        changed = current is None or current.etag != etag
        if changed and not dry_run:
            await self._append(
                WorkloadPut(
                    at_ms=now_ms(),
                    key=workload.key,
                    definition=workload.to_wire(),
                    etag=etag,
                    actor=actor_of(request),
                    expected=expected,
                )
            )
        told_back = {"key": workload.key, "etag": etag, "changed": changed, "dry_run": dry_run,
                "warnings": [*map(str, warnings), *planned.warnings]}  # fmt: skip
        created = current is None and not dry_run
        return json_response(told_back, 201 if created else 200, {"ETag": f'"{etag}"'})

    @described(shapes.Deleted, headers=(*MATCH, *ACTOR), problems=(404, 412))
    async def delete_workload(self, request: web.Request) -> web.Response:
        """Deletes a workload; it stops once what is in flight has ended."""
        put = self._api.put_of(request)
        actor, at_ms, expected = actor_of(request), now_ms(), _condition(request, put)
        was_paused = put.key in self._api.runtime.control.view.paused
        await self._append(WorkloadDeleted(at_ms=at_ms, key=put.key, actor=actor, expected=expected))
        if was_paused:
            # Compaction may drop the deletion, and a pause must not come back with the next definition.
            await self._append(Paused(at_ms=at_ms, key=put.key, partition=ALL, paused=False, actor=actor))
        return json_response({"key": put.key, "deleted": True})

    async def _append(self, event: AnyControlEvent) -> None:
        control = self._api.runtime.control
        if not control.counted(await control.append(event)):
            raise ApiError(
                412, "Changed meanwhile", "somebody else changed it at the same moment; read it, then decide"
            )

    @staticmethod
    async def _body(request: web.Request) -> Document:
        raw = await request.read()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ApiError(400, "Not UTF-8", f"the body is not UTF-8 (byte {error.start})") from error
        # YAML is read by a patient parser: away from the loop that pushes messages.
        documents = await asyncio.to_thread(read_documents, text, "body")
        if len(documents) != 1:
            raise ApiError(400, "Bad body", f"the body must be one definition, it has {len(documents)}")
        return documents[0]


def _condition(request: web.Request, current: WorkloadPut | None) -> str | None:
    """The etag of what a conditional change replaces, "" for nothing; None when there is no condition.

    Raises:
        ApiError: the condition does not hold.
    """
    told = {name: ",".join(request.headers.getall(name, [])) for name in ("If-Match", "If-None-Match")}
    if current is None and told["If-Match"]:
        raise ApiError(412, "Not there", "If-Match: there is no such workload any more; read, then decide")
    if current is not None and told["If-Match"] and not _names(told["If-Match"], current.etag):
        raise ApiError(
            412, "Changed meanwhile", f"the definition's ETag is {current.etag}; read it again, then decide"
        )
    if current is not None and told["If-None-Match"] and _names(told["If-None-Match"], current.etag):
        raise ApiError(412, "There already", f"If-None-Match: {current.key} is there; read it, then decide")
    if not any(told.values()):
        return None
    return "" if current is None else current.etag


def _names(tags: str, etag: str) -> bool:
    """Whether `tags` name `etag`; also as a weak one, which it becomes in a gateway that compresses."""
    return tags.strip() == "*" or etag in {
        tag.strip().removeprefix("W/").strip('"') for tag in tags.split(",")
    }


def _flag(request: web.Request, name: str) -> bool:
    """A flag of the query string. Raises ApiError: what is mistyped must not be taken for no."""
    text = request.query.get(name, "false")
    if text not in {"true", "false"}:
        raise ApiError(400, "Bad query", f"{name}={text[:40]!r} must be true or false")
    return text == "true"
