"""Parts of the bench `report`: data made from a seed, and three ways to answer the same questions.

Data has the formats of the archive and the store. The jobs' code, DuckDB and plain Python answer.

    files     what both generators share: the pool of processes, writing a Parquet file
    audits    a store of `dashboard` with windows of two regions
    records   an archive of topics, and a copy of it with known differences
    ours      the answers by what `python -m spark` runs
    duck      the answers by DuckDB's SQL
    plain     the report by one Python process
    shapes    answers in a shape that does not depend on who gave them
    works     which question is what, and the process in which one is answered
    measure   runs such a process: seconds, memory, answer
"""
