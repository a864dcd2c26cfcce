"""From a configuration to runs: the work behind the subcommands of `rlpto`."""
