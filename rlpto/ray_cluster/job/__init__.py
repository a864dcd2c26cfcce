"""The job controller: an actor for each job, which owns its workers and recovers from faults."""
