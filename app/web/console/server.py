"""Installs API and pages in Faust's web app, before the server listens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from app.config.web_address import Web
from app.kernel.json_types import JsonObject
from app.web.console.api import api_routes
from app.web.console.pages import Pages
from app.web.http.access import AccessControl
from app.web.http.context import ApiContext
from app.web.http.openapi import openapi
from app.web.http.responses import MAX_BODY_BYTES, add_security_headers, guard
from app.worker.members.peer_requests import WORKER_HEADER
from app.worker.runtime.service import Runtime


def options(settings: Web, runtime: Callable[[], Runtime | None]) -> JsonObject:
    """The options of Faust's aiohttp application."""

    def worker() -> str:
        made = runtime()
        return "" if made is None else made.worker

    return {"middlewares": [guard(AccessControl(settings, worker).check)], "client_max_size": MAX_BODY_BYTES}


def install(web_app: Any, runtime: Callable[[], Runtime | None], region: str) -> None:
    """Adds the routes; `runtime` gives the worker's runtime once it exists."""

    async def name_worker(_: web.Request, answer: web.StreamResponse) -> None:
        if (made := runtime()) is not None:
            answer.headers[WORKER_HEADER] = made.worker

    web_app.on_response_prepare.extend([add_security_headers, name_worker])
    api = ApiContext(runtime, region)
    web_app.on_shutdown.append(api.operations.stop)
    web_app.add_routes(api_routes(api))
    web_app.add_routes(Pages().routes())


def document() -> JsonObject:
    """The OpenAPI document, without a worker."""
    return openapi(api_routes(ApiContext(lambda: None, "")))
