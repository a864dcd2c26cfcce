"""From a configuration to runs: what the verbs of the command do."""
