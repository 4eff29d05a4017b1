"""The REST calls for operations, which are long work that requests started, of any worker."""

from __future__ import annotations

import orjson
from aiohttp import web

from app.web.http import schemas
from app.web.http.context import ApiContext
from app.web.http.forwarding import FORWARDED_READ_TIMEOUT_S, HOP_HEADER, ask_worker
from app.web.http.responses import ApiError, json_response
from app.web.http.route_docs import described


class OperationRoutes:
    """The handlers."""

    def __init__(self, api: ApiContext) -> None:
        self._api = api

    def routes(self) -> list[web.RouteDef]:
        operation = "/api/v1/operations/{id}"
        return [web.get(operation, self.get_operation), web.delete(operation, self.cancel_operation)]

    @described(schemas.Operation, problems=(404,))
    async def get_operation(self, request: web.Request) -> web.Response:
        """The state of an operation, whichever worker runs it."""
        op = self._api.operations.get(request.match_info["id"])
        return json_response(op.to_json()) if op is not None else await self._ask_other_workers(request)

    @described(schemas.Operation, problems=(404,))
    async def cancel_operation(self, request: web.Request) -> web.Response:
        """Cancels an operation; what it has done so far stays."""
        op = self._api.operations.get(request.match_info["id"])
        if op is None:
            return await self._ask_other_workers(request)
        await self._api.operations.cancel(op)
        return json_response(op.to_json())

    async def _ask_other_workers(self, request: web.Request) -> web.Response:
        silent_workers, name, this_worker = 0, request.match_info["id"][:80], self._api.runtime.worker
        other_workers = (
            [] if request.headers.get(HOP_HEADER) else sorted(self._api.beats().keys() - {this_worker})
        )
        for worker in other_workers:
            try:
                status, content = await ask_worker(
                    self._api, request, worker, patience_s=FORWARDED_READ_TIMEOUT_S
                )
                if status == 200:
                    return json_response(orjson.loads(content))
            except (ApiError, orjson.JSONDecodeError):
                silent_workers += 1
        unanswered = f" ({silent_workers} workers did not answer)" if silent_workers else ""
        raise ApiError(
            404, "No such operation",
            f"no worker knows {name}{unanswered}: it ended long ago, or with its worker. "
            "To continue a merge, send it again with its id and resume",
        )  # fmt: skip
