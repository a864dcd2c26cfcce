"""The SQLite database shared by the web process and the scheduler process.

The web process inserts jobs (`submitted`) and requests; only the scheduler sets a job's later states. Times are seconds
since 1970. Functions take a `Store` and write inside its `transaction()`; inside an outer transaction they do not
commit.
"""
