"""Answers of the API: JSON, problems (RFC 9457), pages of lists; and the guard around every handler."""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
import structlog
from aiohttp import web
from aiokafka.errors import KafkaError

from app.config.problems import ConfigProblem, InvalidConfiguration
from app.kafka.client.cluster import ClusterUnreachable
from app.kernel.json_types import JsonObject
from app.web.http.route_docs import DEFAULT_LIMIT, MAX_LIMIT, described_of

log = structlog.get_logger(__name__)

MAX_BODY_BYTES = 64 * 1024  # of a body that is no definition
PROBLEM = "urn:switchyard:problem:"  # the prefix of a problem's `type`
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiError(Exception):
    """An answer that is a problem. `title` names its kind."""

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        problems: Sequence[ConfigProblem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.title = title
        self.detail = detail
        self.problems = problems
        self.headers = headers or {}

    @property
    def type(self) -> str:
        """A name of the kind for programs, from the title, unless the title only repeats the status."""
        if self.title == HTTPStatus(self.status).phrase:
            return "about:blank"
        return PROBLEM + re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


def errors_as_problems(
    *known: tuple[type[Exception] | tuple[type[Exception], ...], int, str],
) -> Callable[[Handler], Handler]:
    """Wraps a handler. An error becomes a problem by the first entry that names its class: status, title."""

    def wrapped(handler: Handler) -> Handler:
        @functools.wraps(handler)
        async def around(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request)
            except Exception as error:
                for errors, status, title in known:
                    if isinstance(error, errors):
                        raise ApiError(status, title, str(error) or repr(error)) from error
                raise

        return around

    return wrapped


def json_response(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """`data` as JSON, never cached."""
    return web.Response(
        body=orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def problem_response(error: ApiError, path: str) -> web.Response:
    """An RFC 9457 problem."""
    body: JsonObject = {
        "type": error.type,
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "instance": path,
    }
    if error.problems:
        body["errors"] = [
            {
                "field": p.field,
                "value": p.value,
                "message": p.message,
                "remedy": p.remedy,
                "severity": p.severity,
                "line": p.line or None,
            }
            for p in error.problems
        ]
    return web.Response(
        body=orjson.dumps(body),
        status=error.status,
        content_type="application/problem+json",
        headers={"Cache-Control": "no-store", **error.headers},
    )


def invalid(error: InvalidConfiguration) -> ApiError:
    """The problem of a definition that is not valid."""
    return ApiError(422, "Invalid definition", str(error), problems=error.problems)


def paged(items: Sequence[Any], request: web.Request) -> JsonObject:
    """At most `limit` of `items`, from `cursor` on; `next` is the cursor of the rest.

    Raises:
        ApiError: Limit or cursor is not a number within its bounds.
    """
    limit = number(request, "limit", DEFAULT_LIMIT, 1, MAX_LIMIT)
    start = number(request, "cursor", 0, 0, 1 << 53)
    end = start + limit
    return {"items": list(items[start:end]), "next": str(end) if end < len(items) else None}


def is_number(text: str) -> bool:
    """Whether `text` is a number in ASCII digits, at most 18 of them."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def number(request: web.Request, name: str, default: int, least: int, most: int) -> int:
    """A number of the query string. Raises ApiError."""
    text = request.query.get(name)
    if text is None:
        return default
    if not is_number(text) or not least <= int(text) <= most:
        raise ApiError(400, "Bad query", f"{name}={text[:40]!r} must be a number from {least} to {most}")
    return int(text)


def flag(request: web.Request, name: str) -> bool:
    """A flag of the query string. Raises ApiError: what is mistyped must not be taken for no."""
    text = request.query.get(name, "false")
    if text not in {"true", "false"}:
        raise ApiError(400, "Bad query", f"{name}={text[:40]!r} must be true or false")
    return text == "true"


def _check(request: web.Request) -> None:
    """Raises ApiError for an unknown parameter, which may be a typing error, and for a body of a type that
    the route does not take."""
    documented = described_of(request.match_info.handler)
    if documented is None or not request.path.startswith("/api/"):
        return
    known = {param.name: param.schema.get("type") == "array" for param in documented.query}
    for name in request.query:
        if name not in known:
            there = f"there are {', '.join(sorted(known))}" if known else "there is none"
            raise ApiError(400, "Bad query", f"{name[:60]}: no such parameter; {there}")
        if not known[name] and len(request.query.getall(name)) > 1:
            raise ApiError(400, "Bad query", f"{name}: stands more than once; give it once")
    if documented.body is not None and request.body_exists and "Content-Type" in request.headers:
        kind = request.content_type
        if kind not in documented.kinds:
            raise ApiError(
                415,
                "Unsupported Media Type",
                f"Content-Type {kind[:60]!r}: send {' or '.join(documented.kinds)}",
            )


def _unanswered(error: web.HTTPException, request: web.Request) -> ApiError:
    """The problem for a request that aiohttp refused."""
    detail, headers = error.text or error.reason, {}
    if isinstance(error, web.HTTPMethodNotAllowed):
        headers = {"Allow": ", ".join(sorted(error.allowed_methods))}
        detail = f"{request.method} is not for this address; there are {headers['Allow']}"
    elif isinstance(error, web.HTTPNotFound) and detail == f"{error.status}: {error.reason}":
        detail = "there is nothing at this address; GET /api/v1/openapi.json lists what there is"
    elif isinstance(error, web.HTTPRequestEntityTooLarge):
        detail = f"the body is too large; at most {MAX_BODY_BYTES} bytes are taken"
    return ApiError(error.status, HTTPStatus(error.status).phrase, detail, headers=headers)


async def add_security_headers(_: web.Request, answer: web.StreamResponse) -> None:
    """Adds headers to every answer: streams, redirects and refusals too."""
    for name, value in SECURITY_HEADERS.items():
        answer.headers.setdefault(name, value)


def guard(check: Callable[[web.Request], None]) -> Any:
    """The middleware around every handler: `check` (`app.web.http.access`), and errors as problems."""

    @web.middleware
    async def around(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            check(request)
            _check(request)
            answer = await handler(request)
        except ApiError as error:
            answer = problem_response(error, request.path)
        except InvalidConfiguration as error:
            answer = problem_response(invalid(error), request.path)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            answer = problem_response(_unanswered(error, request), request.path)
        except web.RequestPayloadError:
            detail = "the body cannot be read: its length or its Content-Encoding is not what was said"
            answer = problem_response(ApiError(400, "Bad body", detail), request.path)
        except (KafkaError, ClusterUnreachable, TimeoutError) as error:
            # A cluster's problem, with a status of its own: the same request may succeed in a moment.
            log.warning("a request failed at Kafka", path=request.path, error=repr(error))
            detail = f"Kafka did not answer as it should: {error or type(error).__name__}; ask again"
            answer = problem_response(ApiError(503, "Kafka away", detail), request.path)
        except Exception:
            log.exception("a request failed", path=request.path, method=request.method)
            detail = "something failed here; the worker's log says what"
            answer = problem_response(ApiError(500, "Internal error", detail), request.path)
        return answer

    return around
