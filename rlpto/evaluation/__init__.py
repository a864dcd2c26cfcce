"""Runs policies on windows and compares the results."""
