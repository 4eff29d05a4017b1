"""Spark jobs over the topics of Switchyard's clusters: the archive, comparisons record by record, the
dashboard and sizing.

    python -m spark archive --bootstrap 127.0.0.1:9092 --to /var/lib/archive --topics 'orders.*' --once
    python -m spark --help

Rules
1. A job is an entry point in `spark.jobs` that reads, calls functions from DataFrame to DataFrame, and
   writes. Every DataFrame has an explicit schema (`spark.schemas`).
2. A job runs on all cores of this machine. Only Spark's own configuration sends it to a cluster.
3. archive and dashboard keep a record that they cannot use in a quarantine table with the reason, and count
   it. size counts it and leaves it out.
4. A job that is killed and started again neither loses nor duplicates records. For archive and dashboard a
   round's output counts from its one commit on, for restore each transaction with its position.
5. Archives are read without Spark (`app.archive`), so that the console and the command line can read them.
6. Jobs import the models of `app` and the yard's download of jars, as the import contract in pyproject.toml
   lists. Only `spark.raw_ranges` reads topics with the workers' Kafka client.
7. `spark.reading` reads the records. archive and dashboard report a range that they cannot read, and read the
   others; verify fails.
"""
