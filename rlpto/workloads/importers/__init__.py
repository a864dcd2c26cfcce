"""Importers of public trace formats: one small file each, found by name in `registry.FORMATS`."""
