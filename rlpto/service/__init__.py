"""A job service: people submit, watch and cancel trainings on a real cluster, while an operator changes the policy."""
