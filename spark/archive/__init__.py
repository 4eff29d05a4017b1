"""The archive job's functions: topics to Parquet files by topic, date and hour, with a log that says which
files count.

    <root>/archive.json                     the cluster's id and the format's version
    <root>/log/00000000000000000007.json    change 7: files added and removed, positions reached
    <root>/records/topic=orders/date=2026-11-22/hour=09/id-<topic id>-<unique>-0.parquet
    <root>/quarantine/topic=orders/…        records without a usable timestamp, in the same layout
    <root>/staging/<name>/                  files being written, which do not count

Rules
1. A file counts from the change of the log (`app.archive.log`) that adds it to the change that removes it. A
   listing of folders proves nothing.
2. A change is made whole or not at all. If two jobs write the same number, one wins.
3. The change that adds records also says how far each partition is archived. There is no other position, so a
   job that is killed leaves at most files that do not count.
4. A partition belongs to its topic's id. A topic that is deleted and made again begins a new lineage, beside
   the files of the former one.
5. A record goes to the date and hour (UTC) of its own timestamp. A late record goes to its old hour, in a new
   file; compaction merges the files.
6. Files are added and removed, never changed. A removed file stays on the disk for its readers, until
   `compact --execute` deletes it.
7. Later versions only add columns (`app.archive.reader.COLUMNS`). A column that a file lacks reads as null.

The root is a folder with hard links, which every executor of a cluster sees at the same path
(docs/spark-on-a-cluster.md).
"""
