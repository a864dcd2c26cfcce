"""Training programs of jobs: the base class, and the programs included in RLPTO."""
