"""What the verbs do: evaluations, trainings, tuning and sweeps, each in a folder of its own."""
