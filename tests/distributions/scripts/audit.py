"""Counts messages in threads, and as arrays; reports into a file."""

import sys
import threading

import numpy as np

from switchyard.audit import FileOutput, SyncAudit

folder, reports, count = sys.argv[1], sys.argv[2], int(sys.argv[3])


def count_half(audit: SyncAudit) -> None:
    for number in range(count // 2):
        audit.sent("orders", 1_000 + number, 10, b"%d" % number)


with SyncAudit(origin="billing-api", tier="consumer", wal=folder, output=FileOutput(reports)) as audit:
    thread = threading.Thread(target=count_half, args=(audit,))
    thread.start()
    rest = count - count // 2
    audit.sent_many("orders", np.arange(rest) + 1_000, np.full(rest, 10))
    thread.join()
    assert audit.logged()
