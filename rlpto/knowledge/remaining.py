"""Estimates of jobs' remaining work, from observations that a scheduler can make.

Estimation from a job's accuracy curve follows Optimus (Peng et al., EuroSys 2018) and SLAQ (Zhang et al., SoCC 2017),
without a declared target: training ends after the curve flattens. The gain over the last half of a job's epochs, as a
share of its whole gain, is compared with the curves of other models at every part of their training. The part is a
distribution, uniform a priori (like for lengths with the heavy tail 1 / x), so an uninformative curve leads to the same
estimate as `unknown`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal

import numpy as np

from rlpto.core.job_store import JobStore
from rlpto.io.arrays import AnyArray, BoolArray, FloatArray, IntArray
from rlpto.io.compiled import kernel
from rlpto.knowledge.history import NO_HISTORY, History, group_at, longer_jobs
from rlpto.knowledge.prior import others_than
from rlpto.performance.tables import SpeedTables

RemainingKnowledge = Literal["declared", "learnt", "curve", "learnt_or_curve", "unknown"]
LEARNING: tuple[RemainingKnowledge, ...] = ("learnt", "learnt_or_curve")
"""Those by which lengths are learnt from finished jobs."""
LEAST_EPOCHS = 1.0
"""Least estimated remaining epochs of a job of unknown length."""
LEAST_GAIN = 1e-4
"""Lower bound of gains in accuracy, and of the recent share of the whole gain."""
LEAST_DONE = 0.02
"""Least part of its training that a job has done in a possible future."""
OF_ALL = 1.0
"""Weight of the mean length of all users' jobs, as a number of jobs of the user, where there is a history."""
SPREAD = 1.0
"""Standard deviation of the logarithm of the recent gain, from one model's curve to another's at the same part."""
_EDGES = np.linspace(0.0, 1.0, 51)
_PARTS = (_EDGES[1:] + _EDGES[:-1]) / 2
AccuracyAt = Callable[[IntArray, FloatArray], FloatArray]
"""[n] accuracy that jobs number [n] had after [n] epochs, which they have trained already."""


class RemainingWork:
    """Estimated remaining epochs of the jobs of a store.

    declared: the truth. unknown: `tail` times the epochs done, as a heavy tail suggests. curve: by the flattening of
    the job's accuracy; an uninformative curve gives the same as unknown.
    learnt: from the mean length of finished jobs of the same type and user that were longer than the job's progress,
    else of all users' jobs of the type; a job that stopped early counts with the epochs it trained. Unknown users count
    as one user. Without such jobs, as for unknown, or with learnt_or_curve as for curve.
    tables: tables of the jobs' models; chosen batch sizes, servers and GPU types do not change a job's type here.
    history: jobs that had finished before; of window 0.
    """

    def __init__(
        self,
        how: RemainingKnowledge,
        tail: float,
        store: JobStore,
        tables: SpeedTables,
        accuracy_at: AccuracyAt,
        history: History = NO_HISTORY,
    ) -> None:
        self._how, self._tail, self._store, self._accuracy_at = how, tail, store, accuracy_at
        self._history = history
        self.take_tables(tables)

    def take_tables(self, tables: SpeedTables, history: History | None = None) -> None:
        """Use these tables of the jobs' models from now on, and another history if there is one."""
        self._history = self._history if history is None else history
        self._pooled = tables.pooled
        self._models = np.array([job_type.model for job_type in tables.types])

    def __call__(self, index: IntArray) -> FloatArray:
        """[n] remaining epochs of jobs number `index` [n]."""
        if self._how == "declared":
            return self._store.epochs[index] - self._store.progress[index]
        learnt, guessed = self._learnt(index), self._guessed(index)
        return np.where(np.isnan(learnt), guessed, learnt)

    def drawn(self, index: IntArray, rng: np.random.Generator) -> FloatArray:
        """[n] remaining epochs of jobs number `index` [n] in a possible future.

        Each is drawn from the finished jobs whose mean is learnt, or else from the distribution whose quantile is
        guessed. Declared ones are certain.
        """
        if self._how == "declared":
            return self(index)
        quantile = rng.uniform(LEAST_DONE, 1.0, len(index))
        left = self._guessed(index, quantile)
        for i, job in enumerate(self._store.records[index]) if self._how in LEARNING else ():
            lengths, chances = self._longer(job)
            if len(lengths):
                at = np.searchsorted(np.cumsum(chances), rng.random(), side="right")
                longest = lengths.max() / quantile[i]  # as for a job of unknown length that has come that far
                left[i] = (lengths[at] if at < len(lengths) else longest) - job["progress"]
        return left

    def known(self, index: IntArray) -> BoolArray:
        """[n] True where the remaining work of jobs number `index` [n] is declared or learnt, not guessed."""
        return np.full(len(index), self._how == "declared") | ~np.isnan(self._learnt(index))

    def _guessed(self, index: IntArray, quantile: FloatArray | None = None) -> FloatArray:
        """[n] remaining epochs by progress alone, or by the curve.

        quantile: [n] of the part of its training that a job has done. Default: that of the estimate, 1 / (1 + tail).
        """
        part = np.full(len(index), 1 / (1 + self._tail)) if quantile is None else quantile
        if self._how in ("curve", "learnt_or_curve"):
            part = self._by_curve(index, part)
            times = (1 - part) / part
        else:
            times = np.full(len(index), self._tail) if quantile is None else (1 - part) / part
        return np.maximum(times * self._store.progress[index], LEAST_EPOCHS)

    def _by_curve(self, index: IntArray, quantile: FloatArray) -> FloatArray:
        """[n] quantiles of the part of its training that each job has done, by its accuracy so far."""
        progress = self._store.progress[index]
        start, half, now = (self._accuracy_at(index, part * progress) for part in (0.0, 0.5, 1.0))
        models, gains = self._models[self._store.type_index[index]], recent_gain(start, half, now)
        done = np.empty(len(index))
        for model in np.unique(models):
            rows = models == model
            done[rows] = parts_done(str(model), gains[rows], quantile[rows])
        return done

    def _learnt(self, index: IntArray) -> FloatArray:
        """[n] remaining epochs learnt from finished jobs; NaN where there are none, or nothing is learnt."""
        left = np.full(len(index), np.nan)
        if self._how in LEARNING:
            fill_learnt(self._store.records, self._pooled, self._history, index, left)
        return left

    def _longer(self, job: Any) -> tuple[FloatArray, FloatArray]:
        """Possible lengths [epochs] of a job [JOB], those of finished jobs beyond its progress, and their chances.

        They come from the jobs of `learnt_epochs`. What the chances of the user's lack to 1 goes to those of all users.
        """
        jobs, job_type, done = self._store.records, self._pooled[job["type_index"]], job["progress"]
        like = jobs[self._pooled[jobs["type_index"]] == job_type]
        possible, chances, left = np.zeros(0), np.zeros(0), 1.0
        for by_user, user, mine in ((1, job["user"], like[like["user"] == job["user"]]), (0, 0, like)):
            over = np.isfinite(mine["finish_time"])
            past = self._history.epochs[slice(*group_at(self._history, 0, job_type, by_user, user))]
            lengths = np.sort(np.append(past, mine["progress"][over]))
            lengths = lengths[lengths > done]
            chances = np.append(chances, left * ending_at(lengths, mine["progress"][~over]))
            possible, left = np.append(possible, lengths), 1 - chances.sum()
        return possible, chances


@kernel()
def fill_learnt(jobs: AnyArray, pooled: IntArray, history: History, index: IntArray, left: FloatArray) -> None:
    """Fill left [n] with the remaining epochs of jobs number index [n] learnt from finished jobs, where there are some.

    jobs: [M] JOB. pooled: [T] `SpeedTables.pooled`. history: of window 0.
    """
    for i in range(len(index)):
        job = jobs[index[i]]
        epochs, _, _ = learnt_epochs(jobs, pooled, history, 0, job)
        if epochs == epochs:
            left[i] = epochs - job.progress


@kernel()
def learnt_epochs(
    jobs: AnyArray, pooled: IntArray, history: History, window: int, job: Any
) -> tuple[float, float, float]:
    """Epochs of a whole training of a job [JOB], learnt from the finished ones of jobs [M]; NaN if there are none.

    The mean is over finished jobs of the same type and user that were longer than the job's progress; without any, over
    such jobs of all users. With such jobs in the history, the mean of all users counts as OF_ALL jobs of the user. Also
    returns between which epochs of its progress, the first included, the mean stays.
    """
    job_type, low, high = pooled[job.type_index], -np.inf, np.inf
    of_all, count, of_user, count_of_user, share = 0.0, 0, 0.0, 0, 0.0
    if len(history.groups):
        count, of_all, low, high = longer_jobs(history, window, job_type, 0, 0, job.progress)
        count_of_user, of_user, _, _ = longer_jobs(history, window, job_type, 1, job.user, job.progress)
        share = OF_ALL if count else 0.0
    for j in range(len(jobs)):
        other = jobs[j]
        if not np.isfinite(other.finish_time) or pooled[other.type_index] != job_type:
            continue
        if other.progress <= job.progress:
            low = max(low, other.progress)
            continue
        high = min(high, other.progress)
        of_all += other.progress
        count += 1
        if other.user == job.user:
            of_user += other.progress
            count_of_user += 1
    if count_of_user:
        return (of_user + share * of_all / count) / (count_of_user + share), low, high
    return (of_all / count if count else np.nan), low, high


def ending_at(lengths: FloatArray, active: FloatArray) -> FloatArray:
    """[L] chances that a job has one of the lengths [L], ascending, of finished jobs.

    active: lengths so far of jobs that have not finished. One more job, of unknown length, counts as longer than all:
    what the chances lack to 1 is its own. Source: Kaplan, Meier, J. Am. Stat. Assoc. 53, 1958.
    """
    longer = len(lengths) - np.arange(len(lengths)) + len(active) - np.searchsorted(np.sort(active), lengths)
    ends = 1 / (longer + 1)
    return np.asarray(ends * np.cumprod(np.append(1.0, 1 - ends))[:-1])


def recent_gain(start: FloatArray, half: FloatArray, now: FloatArray) -> FloatArray:
    """Logarithm of the gain in accuracy since half of the epochs, as a share of the whole gain; any shape.

    start, half, now: accuracy at the beginning, at half of the epochs done and after them. NaN where nothing was
    gained.
    """
    gained = now - start
    share = np.divide(now - half, gained, out=np.full(np.shape(gained), np.nan), where=gained > LEAST_GAIN)
    return np.asarray(np.log(np.clip(share, LEAST_GAIN, 1.0)))


def parts_done(model: str, gain: FloatArray, quantile: FloatArray) -> FloatArray:
    """[n] estimated part of its training that each job of a model has done, by other models' curves.

    gain: [n] `recent_gain`, NaN if not known. quantile: [n] of the distribution of that part; low quantiles mean more
    remaining work.
    """
    error = np.nan_to_num((gain[:, None, None] - _gains_without(model)) / SPREAD)
    weight = np.exp(-0.5 * np.minimum(error**2, 50.0)).sum(axis=1)
    below = np.cumsum(weight, axis=1)
    return np.array(
        [np.interp(part * row[-1], np.append(0.0, row), _EDGES) for part, row in zip(quantile, below, strict=True)]
    )


@cache
def _gains_without(model: str) -> FloatArray:
    """[models, parts] recent gain of all built-in models except the named one, from `others_than`."""
    gains = []
    for profile in others_than(model, least=1):
        done = _PARTS * profile.epochs
        gains.append(recent_gain(*(profile.accuracy(part * done) for part in (0.0, 0.5, 1.0))))
    return np.array(gains)
