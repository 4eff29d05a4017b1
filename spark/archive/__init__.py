"""The archive: topics as Parquet files by topic, date and hour, with a log that says which files count.

    <root>/archive.json                     which cluster it is of, the format's version
    <root>/log/00000000000000000007.json    change 7: files added and removed, positions reached
    <root>/records/topic=orders/date=2026-11-22/hour=09/<topic id>-7-0.parquet
    <root>/quarantine/topic=orders/…        records without a usable timestamp, otherwise the same
    <root>/staging/<name>/                  what is being written; counts for nothing

Rules
1. A file counts because a change of the log adds it and none removes it. A listing of folders says nothing.
2. A change is made by creating its number's file, which must not be there: whole or not at all, one writer
   wins.
3. The change that adds records says how far each partition is archived. There is no other position: a job
   killed anywhere leaves at most files that do not count.
4. A partition belongs to its topic's id. A topic made anew begins a new lineage, beside the former one's
   files.
5. A record goes to the date and hour (UTC) of its own timestamp. One that comes late goes to its old hour, in
   a new file, whenever it comes; nothing is dropped for being late, and compaction joins the files.
6. Files are only ever added and removed, never changed. What was removed stays on the disk for those who read
   it, until `vacuum`.
7. Columns are added, never changed or taken away; what a file lacks reads as null
   (`app.archive.reader.COLUMNS`).

The root is a folder on a file system where creating a file that is there fails (local disks, NFS, CephFS,
HDFS mounted); every executor of a cluster sees it at the same path.
"""
