"""Run experiments from configurations: the work behind the subcommands of `rlpto`."""
