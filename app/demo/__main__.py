"""python -m app.demo [--once]: see `story`."""

import sys

from app.demo.story import main

if __name__ == "__main__":
    sys.exit(main())
