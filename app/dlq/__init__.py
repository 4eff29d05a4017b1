"""Dead letter queues worked through: which letters (query), merged, purged, exported, counted.

    query, letter, rules, progress, stats     pure: what is chosen, what becomes of it, what is remembered
    read, merge, purge, export                Kafka and files, at the edge

A dead letter queue is a topic; nothing in it is ever changed. What was merged is remembered in Kafka itself,
as the committed offsets of a group per operation (`progress`), so that any worker can go on with it.
"""
