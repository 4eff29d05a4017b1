"""Ends a yard's brokers when the process that uses them has ended, in any way.

`Yard` starts one warden and keeps the write end of its standard input. End of file means that the user
closed the yard or died, even by kill -9. A forked child may hold that pipe open, so the warden also checks
its parent every second. It has a session of its own, so no Ctrl-C reaches it. It finds the brokers by
their marks, so no broker escapes it.

    python -m app.dev.yard.warden HOME keep|remove        # remove: the folder too
"""

from __future__ import annotations

import os
import select
import shutil
import sys
from pathlib import Path

from app.dev.yard.processes import kill_all, running

PARENT_CHECK_INTERVAL_S = 1.0
KILL_TIMEOUT_S = 15.0


def main(arguments: list[str]) -> int:
    home, keep = Path(arguments[0]), arguments[1] == "keep"
    parent = os.getppid()
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin], [], [], PARENT_CHECK_INTERVAL_S)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    kill_all(home, KILL_TIMEOUT_S)
    if running(home):
        return 1
    if not keep:
        shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
