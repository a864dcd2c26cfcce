"""Measuring training programs on the cluster at hand, for the profiles that the simulator reads."""
