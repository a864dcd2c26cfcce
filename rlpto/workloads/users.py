"""Users for traces that record none: submissions that are alike become one user's."""

from __future__ import annotations

import numpy as np
import pandas as pd

from rlpto.io.arrays import IntArray
from rlpto.workloads.trace import Trace

SUBMISSION_PAUSE_S = 60.0
"""Longest pause [s] between two jobs of one virtual cluster and size within one submission."""
ERROR = 0.5
"""Standard deviation of the error in the ranks of submissions, as a multiple of that of the logarithm of durations. The
mean of a user's other jobs then explains 0.6 of the variance of the logarithm of durations within windows, of Philly's
jobs and of synthetic ones. In Philly, whose file has no users, logarithms of the durations of successive jobs of one
virtual cluster and size correlate by 0.7 if an hour or more lies between them, by 0.9 within a submission."""


def mark_submissions(jobs: pd.DataFrame, pause: float = SUBMISSION_PAUSE_S) -> pd.DataFrame:
    """Jobs with columns submission (number), head (first of it), gap (s since the one before), size (jobs)."""
    jobs = jobs.sort_values(["group", "user", "gpus", "submit_time"], kind="stable")
    same = (jobs[["group", "user", "gpus"]] == jobs[["group", "user", "gpus"]].shift()).all(axis=1)
    gap = jobs["submit_time"].diff()
    head = ~(same & (gap <= pause))
    submission = head.cumsum()
    size = submission.groupby(submission).transform("size")
    return jobs.assign(submission=submission, head=head, gap=gap, size=size)


def cluster_users(trace: Trace, seed: int) -> IntArray:
    """[M] number of the user that every job of a trace is given; the same seed gives the same users.

    Jobs of a submission (`mark_submissions`; in a generated trace those drawn as one) have one user. The n submissions
    of a virtual cluster are ranked by the mean logarithm of their durations with an error, and dealt by rank to
    ceil(sqrt(n)) users: neighbours to each, and to the k-th largest user 1/k times as many as to the largest (Zipf). So
    a few users submit most jobs and jobs of a user take similar times, but how long one takes stays open: see ERROR.
    Durations that are not known, or are below 1 s, count as 1 s.
    """
    if len(trace) == 0:
        return np.zeros(0, dtype=np.int64)
    rng = np.random.default_rng([seed, 4])
    log = np.log(np.maximum(np.nan_to_num(trace.duration), 1.0))
    marked = mark_submissions(trace.jobs.assign(log=log))
    found = marked.groupby("submission").agg(group=("group", "first"), log=("log", "mean"))
    score = found["log"].to_numpy() + ERROR * log.std() * rng.standard_normal(len(found))
    user, users = np.empty(len(found), dtype=np.int64), 0
    for rows in found.reset_index().groupby("group").indices.values():
        share = rng.permutation(1.0 / np.arange(1, np.ceil(np.sqrt(len(rows))) + 1))
        ends = np.cumsum(share) / share.sum() * len(rows)
        user[rows[np.argsort(score[rows], kind="stable")]] = users + np.searchsorted(ends, np.arange(len(rows)) + 0.5)
        users += len(share)
    of_job = np.empty(len(trace), dtype=np.int64)
    of_job[marked.index.to_numpy()] = user[marked["submission"].to_numpy() - 1]
    return of_job
