"""Spark jobs over what Switchyard's clusters hold: the archive, and comparisons record by record.

    python -m spark archive --bootstrap 127.0.0.1:9092 --to /var/lib/archive --topics 'orders.*' --once
    python -m spark --help

Rules
1. A job is pure functions from frame to frame, and a thin entry point in `spark.jobs` that reads, calls them
   and writes. Frames have explicit schemas (`spark.schemas`).
2. It runs on this machine with all cores, and on a cluster by Spark's own configuration only.
3. A record that a job cannot use goes to a quarantine table with its reason, and is counted.
4. A job that is killed and started again neither loses nor doubles: what it wrote counts once a single atomic
   step says so.
5. `spark.archive.{layout,log,reader}` need no Spark, so that the console and the command line can read
   archives.
6. Of `app` only the pure core, what its topics are called and hold (`app.controllog.topics`,
   `app.controllog.codec`), and the yard's way of fetching jars are used. Only `spark.raw_ranges` reads topics
   as workers do.
7. A topic or range that cannot be read holds up no other, and is told: records are read by `spark.reading`.
"""
