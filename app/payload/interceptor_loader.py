"""Loads the configured interceptors at start, by the names that `app.payload.interceptors` describes."""

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
_EXAMPLE = "write package.module:object"


class InterceptorError(ValueError):
    """Interceptors that cannot be used. `problems` has a text for each, with its remedy."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


def load_interceptors(names: Sequence[str]) -> list[tuple[str, Interceptor]]:
    """(name, interceptor) for each of the names, or InterceptorError: it has all that are wrong."""
    problems: list[str] = []
    found: list[tuple[str, Interceptor]] = []
    if len(names) > MAX_INTERCEPTORS:
        raise InterceptorError([f"{len(names)} interceptors are more than {MAX_INTERCEPTORS}; combine some"])
    for number, name in enumerate(names):
        if name in names[:number]:
            problems.append(f"interceptor {name}: named twice; name it once")
            continue
        try:
            found.append((name, _interceptor(name)))
        except _LoadError as error:
            problems.append(f"interceptor {str(name)[:200]}: {error}")
    if problems:
        raise InterceptorError(problems)
    return found


class _LoadError(Exception):
    """A problem with one interceptor, and its remedy."""


def _interceptor(name: str) -> Interceptor:
    target = name if isinstance(name, str) and ":" in name else _entry_point(name).value
    target = target.partition(" [")[0]  # an entry point's extras
    if not _DOTTED.fullmatch(target):
        raise _LoadError(f"not a valid name; {_EXAMPLE}")
    module_name, _, path = target.partition(":")
    loaded: object = _import(module_name)
    for part in path.split("."):
        if not hasattr(loaded, part):
            close = difflib.get_close_matches(part, dir(loaded), 1, 0.6)
            hint = f"did you mean {close[0]}?" if close else "correct its spelling"
            raise _LoadError(f"{module_name} has no {path}; {hint}")
        loaded = getattr(loaded, part)
    if inspect.isclass(loaded):
        try:
            loaded = loaded()
        except Exception as error:
            raise _LoadError(
                f"cannot be created without arguments: {type(error).__name__}: {error}; correct the class"
            ) from error
    return _checked(loaded)


def _entry_point(name: object) -> EntryPoint:
    installed = {point.name: point for point in entry_points(group=GROUP)}
    if not isinstance(name, str) or name not in installed:
        known = ", ".join(sorted(installed)) or "none"
        raise _LoadError(f"no entry point of {GROUP} (installed: {known}); install it, or {_EXAMPLE}")
    return installed[name]


def _import(module_name: str) -> object:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise _LoadError(
                f"no module {error.name}; install its package beside Switchyard, or set PYTHONPATH"
            ) from error
        raise _LoadError(f"{module_name} needs module {error.name}; install it") from error
    except (Exception, SystemExit) as error:
        raise _LoadError(
            f"{module_name} cannot be imported: {type(error).__name__}: {error}; correct the module"
        ) from error


def _checked(loaded: Any) -> Interceptor:
    before = getattr(loaded, "before", None)
    if not callable(before):
        raise _LoadError("has no method before(message); write one that returns Send, Reject or Skip")
    if inspect.iscoroutinefunction(before):
        raise _LoadError("its method before is async, but no worker waits for it; write it without async")
    try:
        inspect.signature(before).bind(Message("t", 0, 0, None, None))
    except TypeError as error:
        raise _LoadError(f"before does not take one message: {error}; write before(self, message)") from error
    except ValueError:  # a method written in C may have no signature
        pass
    interceptor: Interceptor = loaded
    return interceptor
