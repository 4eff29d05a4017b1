"""Interceptors by name, at start: see `app.payload.interceptors` for what the names are."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from app.payload.interceptors import Interceptor, Message

GROUP = "switchyard.interceptors"
MAX_INTERCEPTORS = 20
_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_EXAMPLE = "name it package.module:object"


class InterceptorError(ValueError):
    """Interceptors that cannot be used; `problems` has a line for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def load_interceptors(names: Sequence[str]) -> list[tuple[str, Interceptor]]:
    """The interceptors with these names, each with its name; [] for no names.

    Raises:
        InterceptorError: with everything that is wrong.
    """
    problems: list[str] = []
    found: list[tuple[str, Interceptor]] = []
    if len(names) > MAX_INTERCEPTORS:
        raise InterceptorError([f"{len(names)} interceptors are more than {MAX_INTERCEPTORS}; join some"])
    for number, name in enumerate(names):
        if name in names[:number]:
            problems.append(f"interceptor {name}: named twice; name it once")
            continue
        try:
            found.append((name, _interceptor(name)))
        except _Wrong as error:
            problems.append(f"interceptor {str(name)[:200]}: {error}")
    if problems:
        raise InterceptorError(problems)
    return found


class _Wrong(Exception):
    """What is wrong with one of them, and the remedy."""


def _interceptor(name: str) -> Interceptor:
    target = name if isinstance(name, str) and ":" in name else _entry_point(name).value
    target = target.partition(" [")[0]  # an entry point's extras
    if not _DOTTED.fullmatch(target):
        raise _Wrong(f"not a name; {_EXAMPLE}")
    module_name, _, path = target.partition(":")
    thing: Any = _import(module_name)
    for part in path.split("."):
        if not hasattr(thing, part):
            close = difflib.get_close_matches(part, dir(thing), 1, 0.6)
            hint = f"did you mean {close[0]}?" if close else "look at its spelling"
            raise _Wrong(f"{module_name} has no {path}; {hint}")
        thing = getattr(thing, part)
    if inspect.isclass(thing):
        try:
            thing = thing()
        except Exception as error:
            raise _Wrong(
                f"cannot be made: {type(error).__name__}: {error}; it is made without arguments"
            ) from error
    return _checked(thing)


def _entry_point(name: object) -> EntryPoint:
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if not isinstance(name, str) or name not in installed:
        known = ", ".join(sorted(installed)) or "none"
        raise _Wrong(f"no entry point of {GROUP} (installed: {known}); install its package, or {_EXAMPLE}")
    return installed[name]


def _import(module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise _Wrong(
                f"no module {error.name}; install its package beside Switchyard, or set PYTHONPATH"
            ) from error
        raise _Wrong(f"{module_name} needs module {error.name}; install it") from error
    except (Exception, SystemExit) as error:
        raise _Wrong(
            f"{module_name} cannot be imported: {type(error).__name__}: {error}; correct the module"
        ) from error


def _checked(thing: Any) -> Interceptor:
    before = getattr(thing, "before", None)
    if not callable(before):
        raise _Wrong("has no method before(message); write one that returns Send, Reject or Skip")
    if inspect.iscoroutinefunction(before):
        raise _Wrong("its before is async, and would be waited for; write it without await")
    try:
        inspect.signature(before).bind(Message("t", 0, 0, None, None))
    except TypeError as error:
        raise _Wrong(f"its before does not take one message: {error}; write before(self, message)") from error
    except ValueError:  # built in C, and does not tell
        pass
    interceptor: Interceptor = thing
    return interceptor
