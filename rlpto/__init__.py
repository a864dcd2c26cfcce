"""RLPTO: a research testbed for scheduling distributed deep-learning training."""

__version__ = "0.2.0"
