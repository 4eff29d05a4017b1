"""Dead letter queues worked through: which letters (query), merged, purged, exported, counted.

    query, letter, rules, operation_progress  pure: what is chosen, what becomes of it, what is remembered
    reader, merge, purge, export              Kafka and files, at the edge

A dead letter queue is a topic; nothing in it is ever changed. What was merged is remembered in Kafka itself,
as the committed offsets of a group per operation (`operation_progress`), so that any worker can go on with
it.
"""
