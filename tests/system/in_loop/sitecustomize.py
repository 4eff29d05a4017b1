"""Python loads this before a worker under test: it notes blocking calls made while an event loop runs in the
thread.

Blocking calls open a file, run a process or resolve a name. They are noted in the file that
`SWITCHYARD_TEST_IN_LOOP` names, once it exists. The test creates it when workers are ready, because Faust
loads its modules in the loop. Each note is a line for the event, then its stack.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

EVENTS = {
    "open", "os.exec", "os.fork", "os.forkpty", "os.link", "os.listdir", "os.mkdir", "os.posix_spawn",
    "os.putenv", "os.remove", "os.rename", "os.rmdir", "os.scandir", "os.symlink", "os.system", "os.truncate",
    "shutil.copyfile", "shutil.move", "shutil.rmtree", "socket.getaddrinfo", "socket.gethostbyaddr",
    "socket.gethostbyname", "socket.getnameinfo", "sqlite3.connect", "subprocess.Popen", "tempfile.mkdtemp",
    "tempfile.mkstemp", "urllib.Request",
}  # fmt: skip
# Parts of file names in the stack: late imports and source lines for tracebacks (files of the installation,
# read once), and Faust's stores, whose RocksDB reads and writes its own folder in the loop.
ALLOWED = (
    "<frozen importlib",
    "/importlib/metadata/",
    "/linecache.py",
    "/faust/stores/rocksdb.py",
    "/faust_rocksdb",
)
MEMORY = ("/proc/", "/sys/fs/cgroup/")  # of the kernel: reading them does not block
FRAMES = 14
VARIABLE = "SWITCHYARD_TEST_IN_LOOP"


def install(path: str) -> None:
    """Installs the audit hook for the life of the process."""
    import asyncio

    notes_file = Path(path)

    running_loop = asyncio._get_running_loop
    seen: set[tuple[str, tuple[tuple[str, int], ...]]] = set()

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in EVENTS or running_loop() is None or str(args[:1])[2:].startswith((path, *MEMORY)):
            return
        frame, at = sys._getframe(1), []
        while frame is not None:
            at.append((frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back
        if any(word in file for file, _ in at for word in ALLOWED) or not notes_file.exists():
            return
        key = event, tuple(at[:3])
        if key not in seen:
            seen.add(key)
            stack = "".join(
                f"    {frame.filename}:{frame.lineno} {frame.name}\n"
                for frame in traceback.StackSummary.extract(
                    list(traceback.walk_stack(sys._getframe(1)))[:FRAMES], lookup_lines=False
                )
            )
            notes = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            os.write(notes, f"{event} {str(args)[:200]}\n{stack}".encode("utf-8", "replace"))
            os.close(notes)

    sys.addaudithook(hook)


if VARIABLE in os.environ and "faust" in sys.orig_argv:
    install(os.environ[VARIABLE])
