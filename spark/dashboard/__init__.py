"""The view over all regions: what their tables say, kept, compared and shown.

    changelogs, incidents, heartbeats
                           --fold--> <store>/<region>   the newest record of every key; loads by five minutes
    all regions' stores    --daily-> <store>/global     traffic by hour, verdicts by window; a date at a time
    both                   --summary-> JSON --page--> HTML

Modules
    decode   a record of a changelog, or a heartbeat, as rows; pure
    frames   schemas, and functions from frame to frame: decoded, newest, loads, windows, traffic, verdicts
    plans    which tiers are compared, by which audit plan (`app.audit.folds.tier_pairs` compares them); pure
    people   workloads, owners, readiness, of the small tables; pure
    timeline what happened, of incidents, the control log and the audit; pure
    store    files that count by the archive's log: written, read back, committed
    fold     a round: the next offsets of a region's topics into its store
    daily    dates whose windows have changed, made anew
    summary  what the report says, as one JSON document
    page     that document as HTML; pure

Rules
1. Exactly once: a round's files, those they replace and the new reach of partitions are one change of the
   archive's log (`app.archive.log`). A round that is killed changes nothing.
2. Of a key the record with the highest position counts, whenever it came: of windows, tiers and trackers that
   is the position that stands in the record (a paused writer may append an older one), of others the offset.
   Incidents have no keys: each has its place as one.
   A changelog that was made anew begins a generation, which counts before all positions.
3. Windows, activity and incidents that are forgotten stay; what is deleted of other tables is deleted.
4. What no table can have written goes to the quarantine with its reason, and is counted.
5. Of a cluster that several regions count, the region that has most of a window counts.
"""
