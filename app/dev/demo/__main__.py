"""python -m app.dev.demo [--once]: see `story`."""

import sys

from app.dev.demo.story import main

if __name__ == "__main__":
    sys.exit(main())
