"""A small client of a worker's REST API, whose errors say what to do."""

from __future__ import annotations

import contextlib
import os
from typing import Any
from urllib.parse import quote, urlsplit

import click
import orjson

EXIT_FAILURE, EXIT_USAGE, EXIT_INVALID, EXIT_NOT_FOUND, EXIT_PRECONDITION = 1, 2, 3, 4, 5
EXIT_PARTIAL, EXIT_UNREACHABLE, EXIT_LOSS, EXIT_CHANGES = 6, 7, 8, 10
REQUEST_TIMEOUT_S = 15.0
BY_STATUS = {404: EXIT_NOT_FOUND, 409: EXIT_PRECONDITION, 412: EXIT_PRECONDITION, 422: EXIT_INVALID,
             502: EXIT_UNREACHABLE, 503: EXIT_UNREACHABLE}  # fmt: skip


class CommandFailure(Exception):
    """Ends the command with a message and an exit code."""

    def __init__(self, message: str, code: int = EXIT_FAILURE, title: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.title = title  # the title of the worker's problem

    def of(self, name: str) -> CommandFailure:
        """This failure, of one of several things: `name`."""
        return CommandFailure(f"{name}: {self}", self.code, self.title)


def worker_url(given: str | None) -> str:
    """The worker's address: the option, SWITCHYARD_URL, or the web port of the local configuration."""
    url = given or os.environ.get("SWITCHYARD_URL")
    if not url:
        from app.config.problems import InvalidConfiguration
        from app.config.settings import load_settings

        port = os.environ.get("SWITCHYARD_WEB_PORT", "6066")
        with contextlib.suppress(InvalidConfiguration):  # only the address is needed, not the whole file
            port = str(load_settings().web.port)
        url = f"http://127.0.0.1:{port}"
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 80) > 0
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url:
        raise CommandFailure(f"--url {url!r} is not an address; write http://host:port", EXIT_USAGE)
    return url.rstrip("/")


class Client:
    """Asks one worker; any worker of the region knows everything."""

    def __init__(self, url: str | None) -> None:
        self.url = worker_url(url)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Any:  # fmt: skip
        """One request's JSON.

        Raises:
            CommandFailure: The worker does not answer, or answers with a problem.
        """
        import http.client
        import urllib.error
        import urllib.request

        data = None if body is None else orjson.dumps(body)
        all_headers = {"Content-Type": "application/json", "X-Switchyard-Actor": actor(), **(headers or {})}
        request = urllib.request.Request(  # noqa: S310 - scheme checked above
            f"{self.url}/api/v1{path}", data=data, method=method, headers=all_headers
        )
        # A proxy for the world outside, which the environment may name, does not know this worker.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout_s) as answer:
                return orjson.loads(answer.read())
        except urllib.error.HTTPError as error:
            raise _failure(error.code, error.read()) from error
        except (OSError, http.client.HTTPException, orjson.JSONDecodeError) as error:
            reason = getattr(error, "reason", error)
            raise CommandFailure(
                f"no worker answers at {self.url} ({reason}); start one with 'faust -A app worker', "
                "or name another with --url or SWITCHYARD_URL", EXIT_UNREACHABLE,
            ) from error  # fmt: skip

    def all(self, path: str, query: str = "") -> list[Any]:
        """Every item of a paged list. `query`: of the address, encoded. Notes on it go to standard error."""
        items: list[Any] = []
        cursor = "0"
        while cursor is not None:
            page = self.ask("GET", f"{path}?limit=500&cursor={cursor}{query and f'&{query}'}")
            items += page["items"]
            for note in page.get("notes", ()) if cursor == "0" else ():
                click.echo(note, err=True)
            cursor = page["next"]
        return items


def _failure(status: int, content: bytes) -> CommandFailure:
    try:
        problem = orjson.loads(content)
        title = str(problem["title"])
        message = f"{title}: {problem['detail']}"
    except (orjson.JSONDecodeError, KeyError, TypeError):
        title, message = "", f"the worker answered {status}: {content[:300].decode('utf-8', 'replace')}"
    return CommandFailure(message, BY_STATUS.get(status, EXIT_FAILURE), title)


def workload_path(name: str) -> str:
    """The API's path of "group/topic". Raises CommandFailure."""
    group, slash, topic = name.partition("/")
    if not (group and slash and topic) or "/" in topic:
        raise CommandFailure(f"{name!r} names no workload; write group/topic", EXIT_USAGE)
    return f"/workloads/{quote(group, safe='')}/{quote(topic, safe='')}"


def route_path(name: str) -> str:
    """The API's path of a route. Raises CommandFailure."""
    if not name or "/" in name:
        raise CommandFailure(f"{name!r} names no route; write its name, as route list tells it", EXIT_USAGE)
    return f"/routes/{quote(name, safe='')}"


def alert_path(name: str) -> str:
    """The API's path of an alert. Raises CommandFailure."""
    if not name or "/" in name:
        raise CommandFailure(f"{name!r} names no alert; write its name, as alert list shows it", EXIT_USAGE)
    return f"/alerts/{quote(name, safe='')}"


def actor() -> str:
    """The user's name, for the activity log."""
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or "unknown"
    return f"{user.encode('ascii', 'replace').decode()} (command line)"  # headers are ASCII


def guarded(command: Any) -> Any:
    """Turns a `CommandFailure` into its message and exit code. It raises SystemExit, because mode would
    make 1 of any other exception."""
    import functools

    from app.config.problems import InvalidConfiguration

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> Any:
        try:
            return command(*arguments, **options)
        except CommandFailure as failure:
            click.echo(f"switchyard: {failure}", err=True)
            raise SystemExit(failure.code) from None
        except InvalidConfiguration as error:
            click.echo(str(error), err=True)
            raise SystemExit(EXIT_INVALID) from None

    return run
