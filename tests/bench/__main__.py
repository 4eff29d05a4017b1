"""`python -m tests.bench NAME`: see `tests.bench.run`."""

from __future__ import annotations

import sys

from tests.bench.run import main

if __name__ == "__main__":
    sys.exit(main())
