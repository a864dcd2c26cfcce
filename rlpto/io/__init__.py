"""Files, settings, errors, compilation: what everything else stands on."""
