"""Additions to what decides, and to what decisions are made and judged by."""

from __future__ import annotations

from .base import Addition

DECISIONS = {
    "a policy": Addition(
        new={
            "rlpto/policies/halves.py": '''\
"""Every job half of the GPUs it asked for."""

from __future__ import annotations

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import BasePolicy, NoOptions


class Halves(BasePolicy[NoOptions]):
    """Half of the request, rounded up, in queue order."""

    name = "halves"
    summary = "half of the requested GPUs, in queue order"
    source = "this test"

    def __call__(self, state: ClusterState) -> Allocation:
        """Half for each; the queue trims what is too much."""
        jobs = state.jobs
        return Allocation(np.maximum(-(-jobs.requested_gpus // 2), jobs.min_gpus))
'''
        },
        inserted=(
            (
                "rlpto/policies/registry.py",
                "from rlpto.policies.index import Index",
                "from rlpto.policies.halves import Halves\n",
            ),
            ("rlpto/policies/registry.py", "Hesrpt),", "Halves, "),
        ),
        use="""
figures = evaluated("--policies", "halves")
assert figures.policy == "halves" and figures.unfinished == 0 and figures.jobs == 2
# The two jobs that asked for 2 and 4 GPUs share the 4 there are, so that neither waits.
assert figures.queueing_mean == 0
""",
    ),
    "a reward term": Addition(
        inserted=(
            (
                "rlpto/core/rewards.py",
                "    classes: tuple[_ClassWeight",
                """\
    completions: float = Field(0.0, ge=0, le=LARGEST_WEIGHT)
    \"\"\"Reward for a job that finishes.\"\"\"
""",
            ),
            (
                "rlpto/core/rewards.py",
                "REWARD_PARTS: tuple[str, ...]",
                """\
@term("jobs", "The weighted number of jobs that finished.")
def _completions(sums: Any, gain: float, weights: Any) -> float:
    return float(weights.completions * sums.finished)


""",
            ),
        ),
        use="""
figures = evaluated("--set", "reward.completions=2")
assert figures.jobs == 2 and figures.reward_completions == 4
parts = [column for column in figures.index if column.startswith("reward_")]
assert figures.reward == pytest.approx(figures[parts].sum())
from rlpto.core.records import INTERVAL
from rlpto.core.rewards import RewardWeights, _completions
sums = np.zeros(1, INTERVAL)[0]
sums["finished"] = 3
assert compiled(_completions, sums, 0.0, RewardWeights(completions=2.0).record()[0]) == 6
""",
    ),
    "a reward term of a sum that is not kept yet": Addition(
        inserted=(
            (
                "rlpto/core/records.py",
                '        ("rescales", "i8"),\n        ("arrived"',
                '        ("waiting", "f8"),\n',
            ),
            ("rlpto/core/records.py", "    to.rescales += more.rescales", "    to.waiting += more.waiting\n"),
            ("rlpto/simulator/kernels.py", "    sums.rescales = 0", "    sums.waiting = 0.0\n"),
            (
                "rlpto/simulator/kernels.py",
                "            unfinished += seconds\n            active[kept] = j",
                "            sums.waiting += seconds\n",
            ),
            (
                "rlpto/simulator/kernels.py",
                "        cluster.active += 1\n        cluster.arrived += 1",
                "        w.sums[b].waiting += cluster.time - job.submit_time\n",
            ),
            (
                "rlpto/core/rewards.py",
                "    classes: tuple[_ClassWeight",
                '    waiting: float = Field(0.0, ge=0, le=LARGEST_WEIGHT)\n    """Cost of one hour without GPUs."""\n',
            ),
            (
                "rlpto/core/rewards.py",
                "REWARD_PARTS: tuple[str, ...]",
                """\
@term("job-h", "Minus the weighted job-hours without GPUs.")
def _waiting(sums: Any, gain: float, weights: Any) -> float:
    return float(-weights.waiting * sums.waiting / HOUR)


""",
            ),
        ),
        use="""
figures = evaluated("--set", "reward.waiting=10")
assert figures.queueing_mean > 0
assert figures.reward_waiting == pytest.approx(-10 * figures.queueing_mean * figures.jobs / 3600)
""",
    ),
    "an observation feature": Addition(
        inserted=(
            (
                "envs/features.py",
                ']\n"""Columns of `jobs` in an observation',
                """\
    Feature(
        "peak",
        "log2(1 + most GPUs held so far) / 6",
        lambda job, inputs: np.log2(1.0 + job.peak_gpus) / 6.0,
    ),
""",
            ),
        ),
        use="""
cluster = scheduled({"model": "cifar10", "epochs": 5.0, "data_size": 50_000.0}, 3, 1)
assert seen(cluster, "peak") == pytest.approx(np.log2(1 + 3) / 6)
from rlpto.envs.features import JOB_TABLE, feature_inputs
table = cluster.state().jobs
job, speed = table.records[0], table.speed[0]
assert compiled(JOB_TABLE[-1].function, job, feature_inputs(job, speed, 0.0)) == pytest.approx(np.log2(4) / 6)
""",
    ),
    "an observation feature of a column that jobs do not have yet": Addition(
        inserted=(
            ("rlpto/core/jobs.py", '        ("grow_left", "f8"),\n', '        ("stalled", "f8"),\n'),
            (
                "rlpto/core/jobs.py",
                '        ("attained_service", "f8"),\n        ("rescale_delay"',
                '        ("stalled", "f8"),\n',
            ),
            ("rlpto/core/jobs.py", "        row.peak_gpus = job.peak_gpus", "        row.stalled = job.stalled\n"),
            (
                "rlpto/simulator/kernels.py",
                "        before, after, unused, trains = job.progress",
                "        job.stalled += delay\n",
            ),
            (
                "envs/features.py",
                ']\n"""Columns of `jobs` in an observation',
                """\
    Feature(
        "stalled",
        "log(1 + minutes of rescale delay had)",
        lambda job, inputs: np.log1p(job.stalled / 60.0),
    ),
""",
            ),
        ),
        use="""
from rlpto.performance.profiles import builtin_rescale_delay
delay = builtin_rescale_delay("cifar10")
cluster = scheduled({"model": "cifar10", "epochs": 5.0, "data_size": 50_000.0}, 4, 4, 2)
assert 0 < delay < 60
assert seen(cluster, "stalled") == pytest.approx(np.log1p(2 * delay / 60))
""",
    ),
    "a setting": Addition(
        inserted=(
            (
                "rlpto/policies/rigid.py",
                "\n\nclass Las(",
                '''\
    at_most: int | None = None
    """Jobs that hold GPUs at once, at most."""
''',
            ),
            (
                "rlpto/policies/rigid.py",
                "        self._until = state.time + first_to_reach(self._limits[level]",
                """\
        if self.options.at_most is not None:
            gpus[order[self.options.at_most :]] = 0
""",
            ),
        ),
        use="""
alone = evaluated("--policies", "las:at_most=1", "--set", "cluster.nodes=[{count: 2, gpus: 4}]")
both = evaluated("--policies", "las", "--fresh", "--set", "cluster.nodes=[{count: 2, gpus: 4}]", "--run-dir", "out2")
assert alone.queueing_mean > 0 == pd.read_csv("out2/cells.csv").iloc[0].queueing_mean
""",
    ),
}
