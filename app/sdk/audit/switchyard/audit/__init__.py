"""The audit library: a few lines that tell the audit what a producer or consumer has sent or handled.

    audit = Audit(origin="billing-api", tier="proxy-client", cluster="east-regional",
                  wal="/var/lib/billing/audit", output=KafkaOutput("kafka.east:9092", region="east"))
    async with audit:
        audit.sent("orders", timestamp_ms, nbytes)           # any client, any thread
        audit.sent_many("orders", timestamps_ms, nbytes)     # arrays

        producer = AuditedProducer(AIOKafkaProducer(...), audit)   # or aiokafka's, wrapped
        consumer = AuditedConsumer(AIOKafkaConsumer(...), audit)   # tier="consumer", an audit of its own

`SyncAudit` is the same for clients without asyncio: `with SyncAudit(...) as audit`. Outputs: `KafkaOutput`,
`HttpOutput` (a batch of JSON lines, POST), `FileOutput`, `CallOutput` for any function, or your own.

What it counts
1. By topic and window of event time: records, bytes, latencies from the record's timestamp to the call, and a
   fingerprint of the messages' ids where there are some. A thread of its own makes a report of that every ten
   seconds, and once more at the end.
2. Give all tiers the same time: the record's timestamp in Kafka.

Exactly once: what that covers
3. Every report has a number, is in the log on disk before it is sent, and is sent until it is acknowledged;
   the collector counts each once. Nothing is counted twice, whenever a process is killed.
4. What was counted is in the log within `log_interval_s` (1 s), at once where somebody waits for `logged`,
   and at the end of a process that ends by itself. `kill -9` loses what was counted since: at most one
   interval and the time of a write. What `logged` was true for is counted exactly once.
   - `AuditedProducer(..., is_durable=True)`: `send_and_wait` returns when the count is logged. All that the
     application knows to be delivered is counted. What Kafka has and the application was not told of, at the
     kill, may not be.
   - `AuditedConsumer` with `enable_auto_commit=False`: `commit` waits for the log, and the log holds the
     offsets up to which was counted. Every record is counted exactly once, whether it comes again or not. A
     record that another process is given again, with another log, was consumed twice, and counts twice.
5. When a machine stops: see `Fsync`. When a log is damaged, that is told; what it held may be missing.
6. Without a log (`wal=None`) a killed process loses what it had not sent: ten seconds.

What it costs
7. On one core of the machine it was built on, a record: `sent` 0.3 µs, with an id of 16 bytes 0.4, with
   another id 0.8; `handled` 0.7; `sent_many` of 500 records 0.09 µs each, of 10,000 0.03 (numpy arrays). That
   is all: counting, log and reports. `logged`, 0.2 ms, for all who wait. A hundred busy topics: 0.7 % of a
   core. (`python -m tests.bench.audit_library`)
8. It never raises after `start`, and never waits for disk or network (but `logged`, which says so). Where
   reports cannot be sent or kept, counts add up: memory is bounded by topics and windows, not by records.
   What is wrong is in `audit.stats`, and once in the standard logger `switchyard.audit`.
9. A process and a log belong together: a second process is refused at `start`. A server with several
   processes starts the audit in each, behind the fork, with `wal=FolderPerWorker(folder)`. A child of a fork
   whose parent has started it counts nothing, says so once, and never touches the parent's log.
10. `HttpOutput` believes the collector only: what a proxy answers is tried again, in smaller pieces where it
   refuses them. Reports that the collector refuses stay in the log's folder (`refused`); `close` says False.

Needs numpy and msgspec; what has Kafka in its name, and the wrappers, aiokafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from switchyard.audit.background_thread import TIERS, Fsync, Stats
from switchyard.audit.errors import AuditError, NotPassed, Refused
from switchyard.audit.outputs import CallOutput, FileOutput, HttpOutput, Output
from switchyard.audit.session import Audit, SyncAudit
from switchyard.audit.worker_folders import FolderPerWorker

if TYPE_CHECKING:
    from switchyard.audit.kafka_clients import AuditedBatch, AuditedConsumer, AuditedProducer
    from switchyard.audit.kafka_output import KafkaOutput

__all__ = [
    "TIERS", "Audit", "AuditError", "AuditedBatch", "AuditedConsumer", "AuditedProducer", "CallOutput",
    "FileOutput", "FolderPerWorker", "Fsync", "HttpOutput", "KafkaOutput", "NotPassed", "Output", "Refused",
    "Stats", "SyncAudit",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """What needs aiokafka is imported when it is asked for."""
    if name in {"AuditedBatch", "AuditedConsumer", "AuditedProducer"}:
        from switchyard.audit import kafka_clients

        return getattr(kafka_clients, name)
    if name == "KafkaOutput":
        from switchyard.audit.kafka_output import KafkaOutput

        return KafkaOutput
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
