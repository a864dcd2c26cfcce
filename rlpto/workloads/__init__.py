"""Sources of jobs: traces, a synthetic generator, windows."""
