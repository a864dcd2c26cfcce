"""Runs policies on windows and says, honestly, how they compare."""
