"""Counts records into windows and reports. This page also describes the audit as a whole. Pure: agents and
tables do the I/O.

    raw batches --reader, count--> Report -+                      +-> windows (table audit_windows)
                                           +-> topic --collect--+
    records of a client --count--> Report -+     ^                +-> tiers   (table audit_tiers)
                                                 +-- Close, Forget --due--+
    windows + tiers --compare--> ok | provisional | lossy | duplicated | corrupted | late | absent-audit
    two tiers' logs of a window --sieve--> places of differences --findings--> missing, doubled, altered

Modules in `switchyard.audit.model`, which workers share with the audit library of clients
    fingerprint        sums that show whether two tiers saw the same records, in any order
    latencies          a histogram of latencies that merges and subtracts exactly
    totals             the count, bytes, fingerprints and latencies of a window's records; they add up
    tally              totals by window, counted from arrays of records
    client_counter     a producer's or consumer's auditor: numbered reports, and what its log keeps of them
    reports            the report: what a source has counted of one of its parts
here
    counter            counts a fetched chunk into a tally
    partition_counter  a partition's reader: divides its counts into parts and makes reports of them
    handover           the note that it leaves to its successor
    consumer_counter   a consumer's partition: counted when fetched, reported when all before it is finished
in `app.audit.folds`
    counted_parts      which of several reports of the same part counts (exactly once)
    window             a window's record: its counts in time and late, its closing
    tier               a tier's record: watermarks by source, when windows close, silent sources
    collector          the fold of the audit topic into both tables
    comparison         two tiers of one window: whether they differ, and what that means
    tier_pairs         which tiers of a topic are compared
and in `app.audit.drilldown`
    reconciliation     invertible Bloom lookup tables: name the ids; strata_estimator: the tables' size
    sieve              both of them over a stream of records' fingerprints, in bounded memory
    id_sums            one or two ids that differ, from the sums of all ids alone
    copy_origins       a copy's offset in its source, by the sequence numbers that its lane gave
    findings           each differing record: missing, altered, doubled, foreign, waiting or unclear

Tables, whose values are folds of their own (`position`: up to which offset of the topic)
    audit_windows  topic/tier/cluster/width/start/shard -> totals, late totals, the closing (when, without
                   which sources), and the counted parts by source, so that a report counts once
    audit_tiers    topic/tier/cluster/shard -> by source its watermark and last report; closings; lateness
    The audit topic is keyed by the audited topic, so all its tiers share a partition, and one writer.

Exactly once
1. A report has all counts so far of one *part* of one source, not only the new ones. A part is a stretch of a
   partition that begins at a fixed multiple of offsets, or one sequence number of a client. The wider of
   two reports of a part counts, so repeated and reordered reports change nothing. The next report has
   everything that a lost one had. A successor that reads the part again reports the same as its predecessor,
   or more. So a zombie does no harm, and no fencing is needed. An auditor leaves its counts to its successor
   (`handover`), because reading again takes time, and a consumer's successor cannot read again what is
   finished.
2. Each table value skips events at or below its own position, and knows itself what it has counted. Values
   may have different ages, for example when a local store is ahead of its changelog or a writer was killed. A
   replay of the topic corrects any such mixture.
3. A closing is an event in the topic, decided once, and closes windows by position: a replay closes them at
   the same place. Later counts are late: they are shown, and never change the closed totals.

No false alarms
4. A silent tier is absent, and shows no loss. A window that was closed without a source that had reported
   before is incomplete, not lossy.
5. Until both tiers have closed a window, a difference is provisional. The lateness grows with the delay of
   late records, up to a limit.
6. No time in a report is ahead of the audit's clock, so clients' clocks are not trusted. Windows are not
   closed by one record with a future time, nor by a few ahead of all others in a backlog (`counter.mark_of`).
   The audit's clock is the brokers': the time at which a report arrived in the topic. Where the topic does
   not have it, it is the clock of the worker that decides what is due.
7. Counts that deviate from the plan are described in words, and never compared as a loss. Examples are
   windows of another width, and clusters that no plan names.
"""
