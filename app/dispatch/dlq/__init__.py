"""Work on dead letter queues: choose letters by a query, merge, purge, export and count them.

    query, letter, rules, operation_progress  pure: which letters, their verdicts, an operation's record
    reader, merge, purge, export              Kafka and files, at the edge

A dead letter queue is a topic, and its records never change. Kafka records the progress of each merge, as
the committed offsets of a consumer group (`operation_progress`), so any worker can resume it.
"""
