"""The one SQLite database in which the web process and the scheduler process meet.

Web inserts jobs (`submitted`) and requests; every later state of a job is the scheduler's. Times are seconds since
1970. Functions take a `Store` and write inside its `transaction()`; they do not commit while an outer one is open.
"""
