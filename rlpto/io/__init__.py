"""Files, settings, errors and compilation, used by all other packages."""
