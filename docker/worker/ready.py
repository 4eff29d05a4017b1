"""The image's health check: exit code 0 when the worker in this container answers /health/ready with 200."""

from __future__ import annotations

import http.client
import os
import sys


def main() -> int:
    worker = http.client.HTTPConnection("127.0.0.1", int(os.environ["SWITCHYARD_WEB_PORT"]), timeout=4)
    try:
        worker.request("GET", "/health/ready")
        answer = worker.getresponse()
        sys.stdout.write(answer.read(1000).decode("utf-8", "replace"))
    except (OSError, http.client.HTTPException) as error:
        sys.stdout.write(f"no answer: {error}")
        return 1
    return 0 if answer.status == http.client.OK else 1


if __name__ == "__main__":
    sys.exit(main())
