"""Policies: functions from the table of jobs to the GPUs each job gets."""
