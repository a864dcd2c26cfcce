"""The `rlpto` command, one module a verb."""
