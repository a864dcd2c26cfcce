"""Where jobs come from: traces, a synthetic generator, windows."""
