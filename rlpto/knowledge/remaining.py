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

    def drawn(self, index: IntArray, count: int, rng: np.random.Generator) -> FloatArray:
        """[count, n] remaining epochs of jobs number `index` [n] in possible futures.

        Each is drawn from the finished jobs whose mean is learnt, or else from the distribution whose quantile is
        guessed, where a job that has not trained counts as one of LEAST_EPOCHS. Declared ones are certain.
        """
        if self._how == "declared":
            return np.tile(self(index), (count, 1))
        quantile, chance = rng.uniform(LEAST_DONE, 1.0, (count, len(index))), rng.random((count, len(index)))
        left = np.stack([self._guessed(index, part) for part in quantile])
        lengths_of, longer = cache(self._lengths_of), dict[tuple[int, int, float], tuple[FloatArray, FloatArray]]()
        for i, job in enumerate(self._store.records[index]) if self._how in LEARNING else ():
            key = int(self._pooled[job["type_index"]]), int(job["user"]), float(job["progress"])
            if key not in longer:
                longer[key] = _longer(*key, lengths_of)
            lengths, chances = longer[key]
            if len(lengths):
                at = np.searchsorted(np.cumsum(chances), chance[:, i], side="right")
                longest = lengths.max() / quantile[:, i]  # as long as one of unknown length that has come that far
                found = np.where(at < len(lengths), lengths[np.minimum(at, len(lengths) - 1)], longest)
                left[:, i] = found - job["progress"]
        return left

    def known(self, index: IntArray) -> BoolArray:
        """[n] True where the remaining work of jobs number `index` [n] is declared or learnt, not guessed."""
        return np.full(len(index), self._how == "declared") | ~np.isnan(self._learnt(index))

    def _guessed(self, index: IntArray, quantile: FloatArray | None = None) -> FloatArray:
        """[n] remaining epochs by progress alone, or by the curve.

        quantile: [n] of the part of its training that a job has done. Default: 1 / (1 + tail), as in estimates.
        """
        part = np.full(len(index), 1 / (1 + self._tail)) if quantile is None else quantile
        progress = self._store.progress[index]
        if self._how in ("curve", "learnt_or_curve"):
            part = self._by_curve(index, part)
            times = (1 - part) / part
        else:
            times = np.full(len(index), self._tail) if quantile is None else (1 - part) / part
        if quantile is not None:
            progress = np.maximum(progress, LEAST_EPOCHS)
        return np.maximum(times * progress, LEAST_EPOCHS)

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

    def _lengths_of(self, job_type: int, user: int | None) -> tuple[FloatArray, FloatArray]:
        """Lengths [epochs] of finished jobs of a pooled type, and lengths so far of active ones, both ascending.

        user: only jobs of this user. Default: of all.
        """
        jobs = self._store.records
        mine = jobs[(self._pooled[jobs["type_index"]] == job_type) & ((user is None) | (jobs["user"] == user))]
        over = np.isfinite(mine["finish_time"])
        past = slice(*group_at(self._history, 0, job_type, int(user is not None), user or 0))
        finished = np.append(self._history.epochs[past], mine["progress"][over])
        return np.sort(finished), np.sort(mine["progress"][~over])


LengthsOf = Callable[[int, int | None], tuple[FloatArray, FloatArray]]


def _longer(job_type: int, user: int, done: float, lengths_of: LengthsOf) -> tuple[FloatArray, FloatArray]:
    """Possible lengths [epochs] of a job, those of finished jobs beyond the epochs done, and their chances.

    They come from the jobs of `learnt_epochs`. Jobs of all users share the chance that the job is longer than all of
    its user's.
    """
    possible, chances, left = np.zeros(0), np.zeros(0), 1.0
    for whose in (user, None):
        finished, active = lengths_of(job_type, whose)
        lengths = finished[np.searchsorted(finished, done, side="right") :]
        chances = np.append(chances, left * ending_at(lengths, active))
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

    active: lengths so far of jobs that have not finished, ascending. One more job, of unknown length, counts as longer
    than all, so the chances add up to less than 1. Source: Kaplan, Meier, J. Am. Stat. Assoc. 53, 1958.
    """
    longer = len(lengths) - np.arange(len(lengths)) + len(active) - np.searchsorted(active, lengths)
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
