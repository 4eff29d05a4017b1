"""The yard: real Apache Kafka on this machine, for the demo and for the tests.

    from app.dev.yard import Yard

    with Yard(regions=1) as yard:
        yard.bootstrap("east-regional")    # "127.0.0.1:2xxxx"
        yard.kill("east-regional")         # kill -9
        yard.start("east-regional")        # same port, same data

Rules:
- It imports nothing else of the project, so that a broken application can still be tested.
- The process table is the only record of running brokers. Each has its yard's folder and its cluster's
  name on its command line, so no state file can be stale.
- A yard used as a library ends with its process, even after kill -9 (`warden`). A yard started by
  `switchyard yard up` runs until `down`.
- Every wait is bounded, and a broker that does not start shows the end of its log.
"""

from __future__ import annotations

from app.dev.yard.clusters import ClusterInfo, Yard
from app.dev.yard.errors import YardError

__all__ = ["ClusterInfo", "Yard", "YardError"]
