"""A small network that adds two bonuses to a job's scores in the index: one to all steps, one to its first step.

A step gives a job more GPUs (`rlpto.policies.index`). The same network is applied to each job; features of all jobs
together (load, spread of the remaining work) relate a job to the others. In compiled code, a window takes little longer
with the network than with constant index weights. Bonuses are bounded; with an output layer of zeros they are 0, and
the policy is the index.
Source: this project; a network shared by a set of jobs follows Mao et al., "Learning Scheduling Algorithms for Data
Processing Clusters" (SIGCOMM 2019).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlpto.core.rewards import HOUR
from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import copy_rows, kernel, njit
from rlpto.policies.greedy import sift_down

JOB_FEATURES: tuple[str, ...] = (
    *("work_left", "work_left_squared", "age", "attained", "waiting", "share_of_most", "most_gpus", "speed_up"),
    *("part_done", "accuracy_left", "priority", "rescale_delay", "pausing", "rescales", "left_above_mean"),
)
"""The network's inputs about a job, defined in `job_features`."""
CLUSTER_FEATURES: tuple[str, ...] = ("load", "jobs", "share_waiting", "mean_left", "spread_left", "share_held")
"""The network's inputs about all jobs together, computed in `add_bonuses`."""
CONTEXT_FEATURES: tuple[str, ...] = ("shorter", "work_ahead", "to_finish", "next_finish", "fair_share", "growth")
"""The network's inputs about a job relative to the others, and about time, defined in `context_features`."""
FEATURES = len(JOB_FEATURES) + len(CLUSTER_FEATURES) + len(CONTEXT_FEATURES)
HIDDEN = 16
"""Width of the network's only hidden layer."""
OUTPUTS = 2
LARGEST_BONUS = 2.0
"""Limit of a bonus, of either sign. Scores are logarithms, and the index's weights lie between 0.1 and 3.5."""
NETWORK_SIZE = HIDDEN * (FEATURES + 1) + OUTPUTS * (HIDDEN + 1)
"""Number of parameters of a network. In order: weights [FEATURES, HIDDEN], biases of hidden units [HIDDEN], weights
[HIDDEN, OUTPUTS], and biases of outputs [OUTPUTS]."""
_INNER = HIDDEN * (FEATURES + 1)
_CONTEXT = len(JOB_FEATURES) + len(CLUSTER_FEATURES)
_SHORTEST_S = 1.0
LONGEST_H = 1e4
"""Assumed hours until a job without GPUs finishes, and the upper limit for all jobs."""


def first_network(seed: int) -> FloatArray:
    """Return a network [NETWORK_SIZE] with a random hidden layer and an output layer of zeros: all bonuses are 0."""
    network = np.zeros(NETWORK_SIZE)
    network[:_INNER] = np.random.default_rng([seed, 17]).normal(0.0, FEATURES**-0.5, _INNER)
    return network


def network_sigmas(size: float) -> FloatArray:
    """Return the standard deviations [NETWORK_SIZE] of perturbations in training: `size` in the hidden layer.

    In the output layer they are `size` x sqrt(8 / HIDDEN), because all hidden units add up in a bonus.
    """
    draws = np.full(NETWORK_SIZE, size)
    draws[_INNER:] *= (8 / HIDDEN) ** 0.5
    return draws


@kernel(error_model="numpy")
def missing_share(job: Any) -> float:
    """Return the share of all the accuracy a job can gain that is still missing, in [0, 1]; job is a VIEW record."""
    in_all = job.final_accuracy - job.first_accuracy
    return float(min(max((job.final_accuracy - job.accuracy) / in_all, 0.0), 1.0)) if in_all > 0.0 else 0.0


@njit(error_model="numpy")
def add_bonuses(
    now: float,
    capacity: int,
    view: AnyArray,
    speeds: FloatArray,
    network: FloatArray,
    inputs: AnyArray,
) -> None:
    """Add the bonuses of a network [NETWORK_SIZE] to `base` and `start` of the score inputs.

    now [s]. capacity [GPUs]. view: [n] VIEW. speeds: [n, K + 1] work per second. inputs: [n] SCORE_INPUTS of
    `rlpto.policies.index`, whose `unit` is set.
    """
    count, seen, hidden, hours = len(view), np.empty(FEATURES), np.empty(HIDDEN), np.empty(len(view))
    wanted, held, waiting, mean, squares, soonest = 0, 0, 0, 0.0, 0.0, LONGEST_H
    for row in range(count):
        job = view[row]
        wanted += job.max_gpus
        held += job.gpus
        waiting += job.gpus == 0
        hours[row] = max(job.remaining / inputs[row].unit, _SHORTEST_S) / HOUR
        left = np.log(hours[row])
        mean += left / count
        squares += left * left / count
        soonest = min(soonest, hours_to_finish(job, speeds[row]))
    first = len(JOB_FEATURES)
    seen[first] = np.log1p(wanted / max(capacity, 1)) - 1.0
    seen[first + 1] = np.log1p(count) / 2.0 - 1.0
    seen[first + 2] = waiting / count
    seen[first + 3] = mean / 2.0
    seen[first + 4] = np.sqrt(max(squares - mean * mean, 0.0)) - 1.0
    seen[first + 5] = held / max(capacity, 1)
    shorter, ahead = np.zeros(count), np.zeros(count)
    sum_shorter(hours, np.empty(count, dtype=np.int64), shorter, ahead)
    for row in range(count):
        job_features(now, view[row], speeds[row], inputs[row].unit, mean, seen)
        context_features(capacity, count, view[row], speeds[row], inputs[row].unit, seen)
        seen[_CONTEXT] = shorter[row] / count - 0.5
        seen[_CONTEXT + 1] = np.log1p(16.0 * ahead[row] / max(capacity, 1)) - 1.0
        seen[_CONTEXT + 3] = np.log(soonest) / 2.0
        copy_rows(hidden, network[HIDDEN * FEATURES : _INNER])
        for feature in range(FEATURES):
            for unit in range(HIDDEN):
                hidden[unit] += network[HIDDEN * feature + unit] * seen[feature]
        every, start = network[NETWORK_SIZE - 2], network[NETWORK_SIZE - 1]
        for unit in range(HIDDEN):
            out = hidden[unit] / (1.0 + abs(hidden[unit]))
            every += network[_INNER + 2 * unit] * out
            start += network[_INNER + 2 * unit + 1] * out
        inputs[row].base += every / (1.0 + abs(every) / LARGEST_BONUS)
        inputs[row].start += start / (1.0 + abs(start) / LARGEST_BONUS)


@kernel()
def sum_shorter(hours: FloatArray, order: IntArray, shorter: FloatArray, ahead: FloatArray) -> None:
    """Fill shorter [n] with the number of jobs with less work left than each job, and ahead [n] with their total hours.

    hours: [n] remaining on one GPU. order: [n] filled with the jobs' numbers, shortest first (a heap sort, because
    np.argsort takes two seconds to compile).
    """
    for row in range(len(order)):
        order[row] = row
    for at in range(len(order) // 2 - 1, -1, -1):
        sift_down(order, len(order), hours, at)
    for size in range(len(order) - 1, 0, -1):
        order[0], order[size] = order[size], order[0]
        sift_down(order, size, hours, 0)
    total, same, before = 0.0, 0, 0.0
    for at in range(len(order)):
        job, longer = order[at], at == 0 or hours[order[at]] > hours[order[at - 1]]
        same, before = (at, total) if longer else (same, before)
        shorter[job], ahead[job] = same, before
        total += hours[job]


@kernel(error_model="numpy")
def hours_to_finish(job: Any, speed: FloatArray) -> float:
    """Return hours until a job of VIEW finishes on its GPUs, from a second to LONGEST_H; LONGEST_H without GPUs."""
    hours = job.remaining / speed[min(job.gpus, job.max_gpus)] / HOUR if job.gpus > 0 else LONGEST_H
    return float(min(max(hours, _SHORTEST_S / HOUR), LONGEST_H))


@kernel(error_model="numpy")
def context_features(capacity: int, count: int, job: Any, speed: FloatArray, unit: float, seen: FloatArray) -> None:
    """Fill to_finish, fair_share and growth of CONTEXT_FEATURES into seen [FEATURES], each scaled to about 1.

    `add_bonuses` fills the other three. shorter: share of the jobs with less remaining work. work_ahead: work of these
    jobs, over capacity. to_finish: hours until the job finishes with its present GPUs; 1 if it holds none. next_finish:
    hours until the first of all jobs finishes. fair_share: GPUs per job over the job's max_gpus. growth: speed that the
    next GPU adds to a running job, in units of one GPU's speed.

    capacity [GPUs]. count: number of jobs. job: a VIEW record. speed: [K + 1] of the job. unit: speed of one GPU.
    """
    seen[_CONTEXT + 2] = np.log(hours_to_finish(job, speed)) / 2.0 if job.gpus > 0 else 0.0
    seen[_CONTEXT + 4] = np.log(max(capacity, 1) / (count * job.max_gpus)) / 2.0
    now, after = job.gpus, job.gpus + 1
    while after < job.max_gpus and not speed[after] > speed[now]:  # skip sizes that are not allowed
        after += 1
    grows = now > 0 and after <= job.max_gpus
    seen[_CONTEXT + 5] = ((speed[after] - speed[now]) / (after - now) / unit if grows else 0.0) - 0.5


@kernel(error_model="numpy")
def job_features(now: float, job: Any, speed: FloatArray, unit: float, mean: float, seen: FloatArray) -> None:
    """Fill the features of one job into seen [FEATURES], in the order of JOB_FEATURES, each scaled to about 1.

    job: a VIEW record. speed: [K + 1] of the job. unit: speed of one GPU. mean: mean over all jobs of the logarithm of
    remaining hours.
    """
    left = np.log(max(job.remaining / unit, _SHORTEST_S) / HOUR)
    seen[0] = left / 2.0
    seen[1] = left * left / 8.0
    seen[2] = np.log1p((now - job.submit_time) / HOUR) - 0.5
    seen[3] = np.log1p(job.attained_service / HOUR) / 2.0 - 0.5
    seen[4] = 1.0 if job.gpus == 0 else 0.0
    seen[5] = job.gpus / job.max_gpus
    seen[6] = np.log2(job.max_gpus) / 3.0 - 0.5
    seen[7] = np.log(max(speed[job.max_gpus] / unit, 1.0)) / 2.0
    seen[8] = job.progress / max(job.epochs, 1e-9)
    seen[9] = missing_share(job)
    seen[10] = 1.0 - job.effective_priority
    seen[11] = np.log1p(job.rescale_delay / 60.0)
    seen[12] = 1.0 if job.rescale_left > 0.0 else 0.0
    seen[13] = np.log1p(job.rescales) / 2.0
    seen[14] = (left - mean) / 2.0
