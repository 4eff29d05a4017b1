"""The audit library: a few lines that report to the audit what a producer or consumer has sent or handled.

    audit = Audit(origin="billing-api", tier="proxy-client", cluster="east-regional",
                  wal="/var/lib/billing/audit", output=KafkaOutput("kafka.east:9092", region="east"))
    async with audit:
        audit.sent("orders", timestamp_ms, nbytes)           # any client, any thread
        audit.sent_many("orders", timestamps_ms, nbytes)     # arrays

        producer = AuditedProducer(AIOKafkaProducer(...), audit)   # or aiokafka's, wrapped
        consumer = AuditedConsumer(AIOKafkaConsumer(...), audit)   # tier="consumer", with another Audit

`SyncAudit` is the same for clients without asyncio: `with SyncAudit(...) as audit`. Outputs: `KafkaOutput`,
`HttpOutput` (a batch of JSON lines, POST), `FileOutput`, `CallOutput` for any function, or your own.

Counts
1. The audit counts by topic and window of event time: records, bytes, and latencies from the record's
   timestamp to the call. If messages have ids, it also keeps a fingerprint of the ids. A thread of the
   library reports these every ten seconds, and once more at the end.
2. Give all tiers the same event time: the record's timestamp in Kafka.

Guarantees
3. Every report has a number. It is in the log on disk before it is sent, and is sent until it is
   acknowledged. The collector counts each report once. So nothing is counted twice, whenever a process is
   killed.
4. Counts are in the log within `log_interval_s` (1 s), at once when a caller awaits `logged`, and when the
   process ends by itself. `kill -9` loses the counts since then: at most one interval and the time of a
   write. Counts for which `logged` returned True are counted exactly once.
   - `AuditedProducer(..., is_durable=True)`: `send_and_wait` waits for the log, at most 5 s. So a record that
     the application knows to be delivered is counted once its count is logged. A record that Kafka has, but
     the application did not learn of before the kill, may be missing.
   - `AuditedConsumer` with `enable_auto_commit=False`: `commit` waits for the log, which also has the offsets
     up to which records were counted. Every record is counted exactly once, redelivered or not. A record that
     another process with another log also gets was consumed twice, and counts twice.
5. `Fsync` says what survives when the machine stops. A damaged log is reported; its counts may be missing.
6. Without a log (`wal=None`) a killed process loses what it had not sent: ten seconds.

Costs
7. On one core of the machine it was built on, per record: `sent` 0.3 µs, with an id of 16 bytes 0.4, with
   another id 0.8; `handled` 0.7; `sent_many` 0.09 µs for 500 records, 0.03 for 10,000 (numpy arrays). This
   includes counting, log and reports. `logged` takes 0.2 ms for all callers together. A hundred busy topics
   take 0.7 % of a core. (`python -m tests.bench.audit_library`)
8. After `start` counting never raises, and never waits for disk or network. `logged` waits for the disk, as
   do durable producers and `commit`; `close` waits for both. If reports cannot be sent or kept, counts add
   up: memory is bounded by topics and windows, not by records. `audit.stats` has the current problems, and
   the standard logger `switchyard.audit` gets each once.
9. A log belongs to one process; `start` refuses a second one. A server with several processes starts the
   audit in each worker, after the fork, with `wal=FolderPerWorker(folder)`. The child of a process that had
   started it counts nothing, logs this once, and never touches the parent's log.
10. `HttpOutput` trusts only the collector. It retries whatever a proxy answers, in smaller pieces if the
    proxy refuses the body. Reports that the collector refuses stay in the log's folder (`refused`), and
    `close` returns False.

The package needs numpy and msgspec. The wrappers and `KafkaOutput` also need aiokafka.
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
    """Imports the names that need aiokafka when they are first used."""
    if name in {"AuditedBatch", "AuditedConsumer", "AuditedProducer"}:
        from switchyard.audit import kafka_clients

        return getattr(kafka_clients, name)
    if name == "KafkaOutput":
        from switchyard.audit.kafka_output import KafkaOutput

        return KafkaOutput
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
