"""The cost of the audit library to its client, in CPU time of the whole process, its thread included.

    python -m tests.bench.audit_library

Prints nanoseconds a record, the best of five rounds, without the loop around.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from switchyard.audit import FileOutput, SyncAudit

RECORDS = 300_000
TOPICS, BUSY_S = 100, 3.0


def best_ns(work: Callable[[], None], many: int) -> float:
    """CPU time of the fastest round, an item."""
    rounds = []
    for _ in range(5):
        began_s = time.process_time()
        work()
        rounds.append(time.process_time() - began_s)
    return min(rounds) / many * 1e9


def empty() -> None:
    for _ in range(RECORDS):
        pass


def main(audit: SyncAudit) -> None:
    now_ms = int(time.time() * 1000)
    ids, texts = (
        [os.urandom(16) for _ in range(RECORDS)],
        [os.urandom(16).hex().encode() for _ in range(RECORDS)],
    )
    times, sizes = now_ms - np.arange(RECORDS) % 9_000, np.full(RECORDS, 200)
    offsets = iter(range(1 << 40))

    def sent(names: list[bytes] | list[None]) -> None:
        for name in names:
            audit.sent("orders", now_ms, 200, name)

    def handled() -> None:
        for _ in range(RECORDS):
            audit.handled("orders", 0, next(offsets), now_ms, 200)

    def sent_many(many: int) -> None:
        for at in range(0, RECORDS, many):
            audit.sent_many("orders", times[at : at + many], sizes[at : at + many])

    def logged() -> None:
        for _ in range(200):
            audit.sent("orders", now_ms, 200)
            audit.logged()

    loop_ns = best_ns(empty, RECORDS)
    rows = {
        "sent": best_ns(lambda: sent([None] * RECORDS), RECORDS) - loop_ns,
        "sent, id of 16 bytes": best_ns(lambda: sent(ids), RECORDS) - loop_ns,
        "sent, id of 32 letters": best_ns(lambda: sent(texts), RECORDS) - loop_ns,
        "handled": best_ns(handled, RECORDS) - loop_ns,
        "sent_many of 500": best_ns(lambda: sent_many(500), RECORDS),
        "sent_many of 10,000": best_ns(lambda: sent_many(10_000), RECORDS),
        "logged": best_ns(logged, 200),
    }
    for name, cost_ns in rows.items():
        print(f"{name:24} {cost_ns:10,.0f} ns")
    began_s, until_s = time.process_time(), time.monotonic() + BUSY_S
    while time.monotonic() < until_s:
        for topic in range(TOPICS):
            audit.sent(f"topic-{topic}", now_ms, 200)
        time.sleep(0.1)
    print(f"{TOPICS} topics, 10 records/s each: {(time.process_time() - began_s) / BUSY_S:.1%} of a core")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        output = FileOutput(Path(folder) / "reports")
        with SyncAudit(origin="bench", tier="consumer", wal=Path(folder) / "wal", output=output) as made:
            main(made)
