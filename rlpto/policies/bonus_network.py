"""A small network that gives every job two bonuses on its score in the index: on all steps, and on its first.

Jobs share its weights, and each is seen next to the others by what it has in common with them (load, spread of the
work left). It is compiled, so that whole windows cost little more than with constants. Bonuses are bounded; with a
last layer of zeros there are none, and the policy is the index.
Source: this project; sets of jobs by a shared network after Mao et al., "Learning Scheduling Algorithms for Data
Processing Clusters" (SIGCOMM 2019).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlpto.core.rewards import HOUR
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.compiled import copy_rows, kernel, njit

JOB_FEATURES: tuple[str, ...] = (
    *("work_left", "work_left_squared", "age", "attained", "waiting", "share_of_most", "most_gpus", "speed_up"),
    *("part_done", "accuracy_left", "priority", "rescale_delay", "pausing", "rescales", "left_above_mean"),
)
"""What the network sees of a job; `job_features` says what each is."""
CLUSTER_FEATURES: tuple[str, ...] = ("load", "jobs", "share_waiting", "mean_left", "spread_left", "share_held")
"""What it sees of all jobs together."""
FEATURES = len(JOB_FEATURES) + len(CLUSTER_FEATURES)
HIDDEN = 8
"""Width of its one hidden layer."""
OUTPUTS = 2
LARGEST_BONUS = 2.0
"""Of either sign; scores are logarithms, and the index's own weights lie between 0.1 and 3.5."""
NETWORK_SIZE = HIDDEN * (FEATURES + 1) + OUTPUTS * (HIDDEN + 1)
"""Numbers of a network: what every feature adds to each hidden unit, the units' constants, what every unit adds to each
output, and the outputs' constants."""
_INNER = HIDDEN * (FEATURES + 1)
_SHORTEST_S = 1.0


def first_network(seed: int) -> FloatArray:
    """[NETWORK_SIZE] a network without bonuses, whose hidden layer is drawn."""
    network = np.zeros(NETWORK_SIZE)
    network[:_INNER] = np.random.default_rng([seed, 17]).normal(0.0, FEATURES**-0.5, _INNER)
    return network


@njit(error_model="numpy")
def add_bonuses(
    now: float,
    capacity: int,
    view: AnyArray,
    speeds: FloatArray,
    network: FloatArray,
    inputs: AnyArray,
) -> None:
    """Add what a network [NETWORK_SIZE] gives the jobs in view to their inputs [n] SCORE_INPUTS.

    inputs: see `rlpto.policies.index`; unit is filled.
    """
    count, seen, hidden = len(view), np.empty(FEATURES), np.empty(HIDDEN)
    wanted, held, waiting, mean, squares = 0, 0, 0, 0.0, 0.0
    for row in range(count):
        job = view[row]
        wanted += job.max_gpus
        held += job.gpus
        waiting += job.gpus == 0
        left = np.log(max(job.remaining / inputs[row].unit, _SHORTEST_S) / HOUR)
        mean += left / count
        squares += left * left / count
    first = len(JOB_FEATURES)
    seen[first] = np.log1p(wanted / max(capacity, 1)) - 1.0
    seen[first + 1] = np.log1p(count) / 2.0 - 1.0
    seen[first + 2] = waiting / count
    seen[first + 3] = mean / 2.0
    seen[first + 4] = np.sqrt(max(squares - mean * mean, 0.0)) - 1.0
    seen[first + 5] = held / max(capacity, 1)
    for row in range(count):
        job_features(now, view[row], speeds[row], inputs[row].unit, mean, seen)
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


@kernel(error_model="numpy")
def job_features(now: float, job: Any, speed: FloatArray, unit: float, mean: float, seen: FloatArray) -> None:
    """Fill seen [FEATURES] with what is seen of one job, in the order of JOB_FEATURES, each of a size about 1.

    job: a VIEW record. speed: [K + 1] of it. unit: speed of one GPU. mean: of the logarithms of hours left, of all
    jobs.
    """
    left = np.log(max(job.remaining / unit, _SHORTEST_S) / HOUR)
    gain = job.final_accuracy - job.first_accuracy
    seen[0] = left / 2.0
    seen[1] = left * left / 8.0
    seen[2] = np.log1p((now - job.submit_time) / HOUR) - 0.5
    seen[3] = np.log1p(job.attained_service / HOUR) / 2.0 - 0.5
    seen[4] = 1.0 if job.gpus == 0 else 0.0
    seen[5] = job.gpus / job.max_gpus
    seen[6] = np.log2(job.max_gpus) / 3.0 - 0.5
    seen[7] = np.log(max(speed[job.max_gpus] / unit, 1.0)) / 2.0
    seen[8] = job.progress / max(job.epochs, 1e-9)
    seen[9] = min(max((job.final_accuracy - job.accuracy) / gain, 0.0), 1.0) if gain > 0.0 else 0.0
    seen[10] = 1.0 - job.effective_priority
    seen[11] = np.log1p(job.rescale_delay / 60.0)
    seen[12] = 1.0 if job.rescale_left > 0.0 else 0.0
    seen[13] = np.log1p(job.rescales) / 2.0
    seen[14] = (left - mean) / 2.0
