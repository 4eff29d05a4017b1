"""Long answers of a worker: a stream of lines, and an operation that the command follows to its end."""

from __future__ import annotations

import http.client
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.cli.client import (
    BY_STATUS,
    EXIT_FAILURE,
    EXIT_PARTIAL,
    EXIT_UNREACHABLE,
    REQUEST_TIMEOUT_S,
    Client,
    CommandFailure,
    actor,
)
from app.kernel.json_types import JsonObject

OPERATION_POLL_INTERVAL_S = 0.3


def progress_bar(shown: bool) -> Progress:
    """A progress bar on stderr, if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not shown or not sys.stderr.isatty())


def letters_of(client: Client, path: str) -> Iterator[bytes]:
    """The lines of an export.

    Raises:
        CommandFailure: The worker refuses, or the stream ends early.
    """
    request = urllib.request.Request(  # noqa: S310 - the client has checked the scheme
        f"{client.url}/api/v1{path}", headers={"X-Switchyard-Actor": actor()}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    count = 0
    try:
        with opener.open(request, timeout=4 * REQUEST_TIMEOUT_S) as answer, progress_bar(shown=True) as bar:
            task = bar.add_task("export", total=int(answer.headers.get("X-Switchyard-Offsets", 0)) or None)
            for line in answer:
                if not line.endswith(b"\n"):
                    raise http.client.IncompleteRead(line)
                count += 1
                bar.advance(task)
                yield line
    except urllib.error.HTTPError as error:
        words = error.read()[:2000].decode("utf-8", "replace")
        raise CommandFailure(_problem(words), BY_STATUS.get(error.code, EXIT_FAILURE)) from error
    except (http.client.HTTPException, ConnectionError, TimeoutError, urllib.error.URLError) as error:
        raise CommandFailure(
            f"the worker at {client.url} broke off after {count} letters: {error!r}; export again",
            EXIT_UNREACHABLE,
        ) from error


def _problem(words: str) -> str:
    import orjson

    try:
        problem = orjson.loads(words)
        return f"{problem['title']}: {problem['detail']}"
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return words


def watch(
    client: Client,
    operation: JsonObject,
    resume_by: str,
    end_by: str = "switchyard dlq operation {id} --cancel",
) -> JsonObject:
    """Waits until an operation has ended; returns its last state.

    `resume_by` says how to continue a failed operation, `end_by` how to end it after Ctrl-C.

    Raises:
        CommandFailure: The operation failed or was canceled, or the worker does not answer any more.
    """
    state = operation
    try:
        with progress_bar(shown=True) as bar:
            task = bar.add_task(str(operation["kind"]), total=None)
            while state["state"] == "running":
                time.sleep(OPERATION_POLL_INTERVAL_S)
                state = client.ask("GET", f"/operations/{operation['id']}")
                progress = state["progress"]
                what = " ".join([str(operation["kind"]), progress.get("step", "")]).strip()
                bar.update(
                    task, description=what, completed=progress.get("looked_at", 0), total=progress.get("of")
                )
    except CommandFailure as failure:
        raise CommandFailure(f"{failure}. Changes so far stay; {resume_by}", failure.code) from failure
    except KeyboardInterrupt:
        stop = end_by.format(id=operation["id"])
        click.echo(f"\n{operation['id']} continues on the worker; end it with: {stop}", err=True)
        raise SystemExit(EXIT_PARTIAL) from None
    if state["state"] == "failed":
        raise CommandFailure(
            f"{state['kind']} {state['id']} failed: {state['error']}; {resume_by}", EXIT_FAILURE
        )
    if state["state"] == "canceled":
        raise CommandFailure(f"{state['kind']} {state['id']} was canceled; {resume_by}", EXIT_PARTIAL)
    return state
