"""The view over all regions: their tables, stored, compared and shown.

    changelogs, incidents, heartbeats
                           --fold--> <store>/<region>   the newest record of every key; loads by five minutes
    all regions' stores    --daily-> <store>/global     traffic by hour, verdicts by window; a date at a time
    both                   --summary-> JSON --page--> HTML

Modules
    decode   a changelog record, incident or heartbeat as rows; pure
    frames   schemas, and functions from DataFrame to DataFrame: entries, loads, windows, traffic, verdicts
    plans    which tiers are compared, by which audit plan (`app.audit.folds.tier_pairs` compares them); pure
    people   workloads, owners and failover readiness, from the small tables; pure
    timeline incidents, control log and audit results as events; pure
    store    files that count by the archive's log: written, read back, committed
    fold     a round: the next offsets of a region's topics into its store
    daily    recomputes the dates whose windows have changed
    summary  the report as one JSON document
    page     that document as HTML; pure

Rules
1. Exactly once: one change of the archive's log (`app.archive.log`) adds a round's files, removes the files
   that they replace, and moves the partitions' reach. A round that is killed changes nothing.
2. The record of a key with the highest position counts, whatever the order. Windows, tiers and
   trackers carry their position, because a paused writer may append an older one late; for other tables it is
   the offset. An incident has no key, so its place is its key. A changelog that is deleted and made again
   begins a generation, which ranks above all positions.
3. Windows, activity and incidents stay in the store when their topics forget them. Deletions in other tables
   count.
4. A record that no table can have written goes to the quarantine with its reason, and is counted.
5. If several regions count a cluster, the region with the highest count of a window counts.
"""
