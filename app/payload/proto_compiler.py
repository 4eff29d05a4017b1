"""Compiles `.proto` sources to descriptor sets with grpcio-tools, if it is installed. Needs no network.

protoc runs as a process of its own, because it writes errors to its file descriptor 2, and because a source
may crash it. It looks for imports in the folder of schemas, where buf and googleapis begin their names, then
beside the source, then in the folder above if that belongs to the schemas, then among the well-known ones. It
takes the first file of a name; `CompiledSource.doubts` tell of others.

A set is cached until the source or one of its imports changes, so that a starting job does not wait for a
compiler. A failure is cached for `COMPILE_RETRY_INTERVAL_S`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from google.protobuf import descriptor_pb2

from app.payload.schema_files import ANYWHERE, HOW, DescriptorError, SchemaFiles, read_limited

COMPILE_TIMEOUT_S = 30.0
MAX_ERROR_CHARS = 500
MAX_CACHED = 200  # sets and failures
COMPILE_RETRY_INTERVAL_S = 10.0
IMPORT = re.compile(rb"(?:^|;)\s*import\s+(?:[a-z]+\s+)?([\"'])([^\"'\n]+)\1", re.MULTILINE)
MAX_IMPORTS = 1_000  # of a source that does not compile, which are looked for

Signature = tuple[int, int, int]  # inode, size, time of the last change (ns)


class CompiledSource(NamedTuple):
    """A descriptor set. `doubts`: which file was taken for an import, where several have its name."""

    descriptor_set: bytes
    doubts: tuple[str, ...]


class Compiled(NamedTuple):
    """A cached set or failure, of files with these signatures, at this time (monotonic)."""

    at_s: float
    signatures: dict[Path, Signature | None]
    result: CompiledSource | DescriptorError


_cache: OrderedDict[tuple[Path, Path | None], Compiled] = OrderedDict()
_lock = threading.Lock()


def compile_source(path: Path, files: SchemaFiles = ANYWHERE) -> CompiledSource:
    """The descriptor set of one `.proto` file among `files`, with its imports.

    Raises:
        DescriptorError: The source cannot be read, grpcio-tools is missing, or protoc refuses the source.
    """
    source = read_limited(path, files)
    key = path.absolute(), files.root
    with _lock:
        cached = _cache.get(key)
    if cached is None or not _is_fresh(cached):
        before = _signature(path)
        folders = import_folders(path, files)
        names = _named(source)
        result: CompiledSource | DescriptorError
        try:
            descriptor_set = _run_protoc(path, source, folders, names)
        except DescriptorError as error:
            result = error
        else:
            names = _imported(descriptor_set)
            result = CompiledSource(descriptor_set, tuple(_doubts(path, folders, names)))
        # In all folders: a new file in an earlier one counts as a change.
        signatures = {folder / name: _signature(folder / name) for name in names for folder in folders}
        signatures[path] = before
        cached = Compiled(time.monotonic(), signatures, result)
        with _lock:
            _cache[key] = cached
            while len(_cache) > MAX_CACHED:
                _cache.popitem(last=False)
    if isinstance(cached.result, DescriptorError):
        raise cached.result
    return cached.result


def _is_fresh(cached: Compiled) -> bool:
    if (
        isinstance(cached.result, DescriptorError)
        and time.monotonic() >= cached.at_s + COMPILE_RETRY_INTERVAL_S
    ):
        return False
    return all(_signature(path) == signature for path, signature in cached.signatures.items())


def _signature(path: Path) -> Signature | None:
    try:
        found = path.stat()
    except (OSError, ValueError):  # ValueError: a NUL in an import's name
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def import_folders(path: Path, files: SchemaFiles = ANYWHERE) -> list[Path]:
    """The folders in which a source's imports are looked for, in this order."""
    source = path.absolute()
    found = [source.parent]
    if files.has(source.parent.parent):
        found.append(source.parent.parent)
    if files.root is not None:
        roots = files.root.absolute(), files.root.resolve()
        found.insert(0, next((root for root in roots if source.is_relative_to(root)), roots[0]))
    return list(dict.fromkeys(found))


def _named(source: bytes) -> list[str]:
    """The imports of a source, without names that lead out of a folder, which protoc refuses."""
    found = (match[2].decode("utf-8", "replace") for match in islice(IMPORT.finditer(source), MAX_IMPORTS))
    return [name for name in found if not name.startswith("/") and ".." not in name.split("/")]


def _imported(descriptor_set: bytes) -> list[str]:
    """The names of the set's files."""
    try:
        return [file.name for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file]
    except Exception:  # noqa: BLE001 - the caller parses the set and reports its faults
        return []


def _doubts(path: Path, folders: Sequence[Path], names: Iterable[str]) -> list[str]:
    """Which file was taken for an import, for each of the `names` that several files have."""
    found = []
    for name in names:
        same: dict[Path, Path] = {}
        for folder in folders:
            file = folder / name
            if os.path.isfile(file):  # noqa: PTH113 - is_file raises OSError for a name that is too long
                same.setdefault(file.resolve(), file)
        if len(same) > 1 and path.resolve() not in same:
            taken, *others = same.values()
            not_taken = " or ".join(map(str, others))
            found.append(f"import {name!r} is {taken}, which is found first, and not {not_taken}")
    return found


def _run_protoc(path: Path, source: bytes, folders: Sequence[Path], names: Iterable[str]) -> bytes:
    """The descriptor set; `names` are the source's own imports. Raises DescriptorError."""
    if importlib.util.find_spec("grpc_tools") is None:
        raise DescriptorError(path, "is source, but grpcio-tools is not installed to compile it", HOW)
    if not source.strip():
        raise DescriptorError(path, "is empty", "write a message into it")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out.binpb"
        command = [
            sys.executable, "-m", "grpc_tools.protoc",
            *(f"--proto_path={folder}" for folder in (*folders, _well_known())), "--include_imports",
            f"--descriptor_set_out={out}", str(path.absolute()),
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=COMPILE_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DescriptorError(path, f"protoc does not run: {type(error).__name__}", HOW) from error
        if done.returncode != 0 or not out.exists():
            error_text = " ".join(done.stderr.decode("utf-8", "replace").split())
            raise _refused(path, error_text, folders, names)
        return read_limited(out)


def _refused(path: Path, error_text: str, folders: Sequence[Path], names: Iterable[str]) -> DescriptorError:
    """The error for a source that protoc refuses."""
    problem = f"does not compile: {error_text[:MAX_ERROR_CHARS] or 'no reason given'}"
    if doubts := _doubts(path, folders, names):
        return DescriptorError(
            path,
            f"{problem} ({'; '.join(doubts)})",
            "correct the source, or give the files different names",
        )
    if "File not found" in error_text:
        places = ", then in ".join(map(str, folders))
        return DescriptorError(
            path, problem, f"add the file or correct the import: imports are looked for in {places}"
        )
    return DescriptorError(path, problem, "correct the source")


def _well_known() -> Path:
    found = importlib.util.find_spec("grpc_tools")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "_proto"
