"""Audit: whether it arrived, tier by tier, and what is missing. Pure: agents and tables do the I/O.

    raw batches --reader, count--> Report -+                      +-> windows (table audit_windows)
                                           +-> topic --collect--+
    records of a client --count--> Report -+     ^                +-> tiers   (table audit_tiers)
                                                 +-- Close, Forget --due--+
    windows + tiers --compare--> ok | provisional | lossy | duplicated | corrupted | late | absent
    two tiers' logs of a window --sieve--> places of what differs --missing--> missing, doubled, altered

Modules, in `switchyard.audit.model`, which the audit library of clients has in common with workers
    fingerprint        sums that tell whether two tiers saw the same records, whatever their order
    latencies          a histogram of latencies that merges and subtracts exactly
    totals             what is known of a window's records: count, bytes, both of the above; they add up
    tally              totals by window of what is counted: records as arrays
    client_counter     a producer's or consumer's auditor: numbered reports, and what a log keeps of them
    reports            the report: what a source has counted of one of its parts
here
    counter            a fetched chunk into a tally
    partition_counter  a partition's reader: cuts what it counts into parts and makes reports of them
    handover           what it leaves to its successor
    consumer_counter   a consumer's partition: counted when it is fetched, told when all before it is finished
in `app.audit.folds`
    counted_parts      which of several reports of the same part counts (exactly-once)
    window             a window's record: open, closed, what came late; explicit keys
    tier               a tier's record: watermarks by source, when windows close, who is silent
    collector          the fold of the reports' topic into both tables
    comparison         two tiers of one window: what the difference is, if it is one
and in `app.audit.drilldown`
    reconciliation     invertible Bloom lookup tables: names ids; strata_estimator: how large they must be
    sieve              both of them over a stream of records' prints, in bounded memory
    id_sums            of one or two ids that differ: which, by the sums of all ids alone
    copy_origins       where of its source a copy comes from, by the numbers that its lane gave
    findings           what became of each record that differs: missing, altered, doubled, foreign, waiting,
    unclear

What the tables hold: values that are folds of their own (`position`: the topic's offset up to which)
    audit_windows  topic/tier/cluster/width/start/shard -> totals, late totals, closed (when, without whom),
                   and per source which parts are counted: all that is needed to count a report once
    audit_tiers    topic/tier/cluster/shard -> per source its watermark and when it was heard; closings; how
                   late it may get
    The reports' topic is keyed by the audited topic, so that its tiers share a partition, and one writer.

Exactly once
1. A report says everything that was counted of one *part* of one source so far, not what is new. A part is
   a stretch of a partition that begins at a fixed multiple of offsets, or one sequence number of a client.
   Of two reports of a part the wider one counts: replayed, repeated and reordered reports change nothing, of
   a lost one the next says it all, and a successor that reads the part again from its start says the same as
   its predecessor, or more. A zombie does no harm; no fencing is needed.
   Who has counted leaves its figures to its successor (`handover`), who need not read the part again: what a
   consumer has gone on from it cannot.
2. Each table value skips what is at or below its own position and has its own memory of what it counted. So
   values of different ages (a local store that is ahead of its changelog, a killed writer) come right by
   replaying the topic, in whatever mixture they were found.
3. Closing is an event in the topic, decided once; a window is closed by position, so that a replay closes it
   at the same place. What is counted afterwards is late: it is told, and never changes the closed figures.

No false alarms
4. A tier that was not heard is absent, and nothing is said of loss. A window that was closed without a source
   that had been heard before is incomplete, not lossy.
5. Until both tiers have closed a window, a difference is provisional. The bound of lateness grows with what
   was seen late, up to a limit.
6. A watermark is never ahead of the clock of the audit, nor is anything else that a report says of times: one
   record with a time in the future closes nothing, nor do a few that are ahead of those about them in a
   backlog (`counter.mark_of`), and no client's clock is believed. The clock of the audit
   is the brokers': when a report came into the topic. Where the topic does not say so it is that of whoever
   decides what is due.
7. What counts otherwise than planned (windows of another width, a cluster that no plan names) is told in
   words, and never compared as if it were loss.
"""
