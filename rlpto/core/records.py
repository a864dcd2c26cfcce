"""Records of one run of a policy on a workload: the input of every metric, plot and table."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rlpto.io.arrays import AnyArray, FloatArray, IntArray
from rlpto.io.compiled import kernel

INTERVAL = np.dtype(
    [
        ("start", "f8"),
        ("end", "f8"),
        ("accuracy_gain", "f8", (3,)),
        ("shortfall", "f8", (3,)),
        ("unfinished", "f8"),
        ("gpu_seconds", "f8"),
        ("rescale_seconds", "f8"),
        ("cost", "f8"),
        ("rescales", "i8"),
        ("arrived", "i8"),
        ("finished", "i8"),
    ],
    align=True,
)
"""Sums over jobs between two decision points. Times in seconds. A reward term is a function of these sums
(`rlpto.core.rewards`).

start, end: the two decision times.
accuracy_gain: [classes] sum over jobs of (accuracy gained / accuracy the job can gain in total).
shortfall: [classes] sum over jobs of seconds in the system x share of that accuracy still to be gained.
unfinished: job-seconds spent in the system (submitted, not finished).
gpu_seconds: GPU-seconds held by jobs.
rescale_seconds: seconds of rescale delay, summed over jobs.
cost: price of the GPUs that jobs held on permanent nodes, plus the price of all rented nodes, in use or not.
rescales: changes at `start` that restart a job which has run before (a first start does not count).
arrived, finished: numbers of jobs. Real clusters count neither cost nor these numbers.
"""


def intervals(
    accuracy_gain: FloatArray,
    unfinished: FloatArray | float,
    gpu_seconds: FloatArray | float,
    rescale_seconds: FloatArray | float,
    shortfall: FloatArray | float = 0.0,
) -> AnyArray:
    """[N] INTERVAL from these sums, with 0 for all others: accuracy_gain, shortfall [N, classes], the others [N]."""
    found = np.zeros(len(accuracy_gain), dtype=INTERVAL)
    found["accuracy_gain"], found["shortfall"], found["unfinished"] = accuracy_gain, shortfall, unfinished
    found["gpu_seconds"], found["rescale_seconds"] = gpu_seconds, rescale_seconds
    return found


@kernel()
def add_interval(total: AnyArray, passed: AnyArray) -> None:
    """Add the sums of an interval to total, both [1] INTERVAL; total then ends with the interval."""
    to, more = total[0], passed[0]
    to.end = more.end
    for c in range(3):
        to.accuracy_gain[c] += more.accuracy_gain[c]
        to.shortfall[c] += more.shortfall[c]
    to.unfinished += more.unfinished
    to.gpu_seconds += more.gpu_seconds
    to.rescale_seconds += more.rescale_seconds
    to.cost += more.cost
    to.rescales += more.rescales
    to.arrived += more.arrived
    to.finished += more.finished


@dataclass(frozen=True)
class JobRecords:
    """One entry per job of the workload, in order of submission; M jobs.

    names, models: tuples of M strings.
    priority, requested_gpus, max_gpus, rescales: [M] int64. peak_gpus: [M] int64, most held at once.
    data_size [samples], epochs: [M] float64.
    submit_time, start_time (first GPU), finish_time: [M] s; NaN if the job did not start or finish.
    gpu_seconds: [M] GPU-s held. final_accuracy: [M] in [0, 1], reached by the end of the run.
    reached_90, reached_95, reached_99: [M] s when the job had first gained that share [%] of all the accuracy it can
    gain; NaN if it never did.
    alone_time: [M] s to finish if the job had the cluster to itself and could change to its fastest GPUs in every epoch
    at no cost, with the rescale delay of its start: no schedule can beat it (where epoch ends are rounded, by more than
    half the resolution per epoch).
    requested_time: [M] s to finish alone with exactly its requested GPUs, start delay included. Both times cover the
    trained epochs of a finished job, otherwise all its epochs. Both are NaN if a job's speed is only guessed.
    trained_epochs: [M] epochs done by the end of the run; fewer than the declared `epochs` if a job stopped early.
    full_accuracy: [M] in [0, 1], after all declared epochs by the profile's curve; NaN for jobs that never stop early.
    kept_seconds: [M] s of training not lost to failures, without starts and writing checkpoints; NaN before there are
    any. Evaluations of real jobs count as training.
    lost_gpu_seconds: [M] GPU-s of training lost to failures; NaN if nodes never fail, and for real jobs that have not
    trained.
    """

    names: tuple[str, ...]
    models: tuple[str, ...]
    priority: IntArray
    requested_gpus: IntArray
    max_gpus: IntArray
    rescales: IntArray
    peak_gpus: IntArray
    data_size: FloatArray
    epochs: FloatArray
    submit_time: FloatArray
    start_time: FloatArray
    finish_time: FloatArray
    gpu_seconds: FloatArray
    final_accuracy: FloatArray
    reached_90: FloatArray
    reached_95: FloatArray
    reached_99: FloatArray
    alone_time: FloatArray
    requested_time: FloatArray
    trained_epochs: FloatArray
    full_accuracy: FloatArray
    kept_seconds: FloatArray
    lost_gpu_seconds: FloatArray


@dataclass(frozen=True)
class DecisionRecords:
    """One entry per decision; D decisions.

    time: [D] s. latency: [D] s the policy and the queue took (wall clock: not reproducible).
    capacity, held: [D] GPUs that were up, and GPUs held after the decision.
    active, waiting: [D] jobs in the system, and jobs without GPUs after the decision.
    reward: [D, TERMS] terms (`rlpto.core.rewards.TERMS`) of the interval that followed, already weighted and signed:
    their sum is the reward.
    shortfall: [D] job-s in that interval, each weighted by the share of the job's possible accuracy still to be gained;
    summed over all classes.
    cost: [D] price of the GPUs held in that interval; 0 if nodes have no price, and on real clusters.
    """

    time: FloatArray
    latency: FloatArray
    capacity: IntArray
    held: IntArray
    active: IntArray
    waiting: IntArray
    reward: FloatArray
    shortfall: FloatArray
    cost: FloatArray

    @classmethod
    def from_rows(
        cls, rows: FloatArray, reward: FloatArray, shortfall: FloatArray, cost: FloatArray
    ) -> DecisionRecords:
        """Records of D decisions from rows [D, 6]: time, latency, capacity, held, active, waiting."""
        time, latency = rows[:, 0], rows[:, 1]
        capacity, held, active, waiting = rows[:, 2:].astype(np.int64).T
        return cls(time, latency, capacity, held, active, waiting, reward, shortfall, cost)


@dataclass(frozen=True)
class AllocationChanges:
    """Every change of a job's GPUs; C changes in order of time (finishing counts as going to 0).

    time: [C] s. job: [C] index into JobRecords. gpus: [C] GPUs held from then on.
    accuracy: [C] accuracy of the job at that moment, in [0, 1].
    """

    time: FloatArray
    job: IntArray
    gpus: IntArray
    accuracy: FloatArray


@dataclass(frozen=True)
class PolicySwitches:
    """Policies that took the decisions of a run in turn, S of them. Empty if one policy took all decisions.

    time: [S] s of the first decision of each. policy: S names.
    """

    time: FloatArray = field(default_factory=lambda: np.zeros(0))
    policy: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeRecords:
    """The rented nodes of a run, at every decision on their number, P of them; sums over all groups of nodes.

    time: [P] s. wanted: [P] GPUs of the nodes wanted from then on. ready, booting: [P] GPUs of usable and of booting
    nodes just before. used: [P] GPUs that jobs held. `wanted`, `ready` and `used` include nodes that are not rented.
    foreseen: [P] GPUs wanted beyond the GPUs held or waited for.
    late: [P] job-s in the following minute, beyond the job-s that its work takes with the requested GPUs.
    cost, idle_cost: [P] price of the rented nodes in that minute, and the part of it beyond the price of the GPUs
    requested for the work done.
    """

    time: FloatArray = field(default_factory=lambda: np.zeros(0))
    wanted: FloatArray = field(default_factory=lambda: np.zeros(0))
    ready: FloatArray = field(default_factory=lambda: np.zeros(0))
    booting: FloatArray = field(default_factory=lambda: np.zeros(0))
    used: FloatArray = field(default_factory=lambda: np.zeros(0))
    foreseen: FloatArray = field(default_factory=lambda: np.zeros(0))
    late: FloatArray = field(default_factory=lambda: np.zeros(0))
    cost: FloatArray = field(default_factory=lambda: np.zeros(0))
    idle_cost: FloatArray = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class RunRecord:
    """One policy on one window with one seed.

    policy: its name. window: name of the window. seed: random seed. capacity: GPUs of the cluster with all nodes up.
    wall_seconds: duration of the run. end: time of the cluster [s] when the run ended. switches: when each policy
    decided, if there were several. rented: its rented nodes, or empty.
    """

    policy: str
    window: str
    seed: int
    capacity: int
    jobs: JobRecords
    decisions: DecisionRecords
    changes: AllocationChanges
    wall_seconds: float
    end: float
    switches: PolicySwitches = field(default_factory=PolicySwitches)
    rented: NodeRecords = field(default_factory=NodeRecords)
