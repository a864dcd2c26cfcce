"""Additions to the project, one of every kind that CONTRIBUTING.md has a row for, and their use.

`test_extension_points.py` makes them on a copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Addition:
    """One addition to the project, and its use.

    new: files of the project by path. inserted: (path, line, text) puts text before the only place where path has line.
    brought: files of the user, beside the project. use: Python that fails unless the addition has its effect.
    """

    use: str
    new: Mapping[str, str] = field(default_factory=dict)
    inserted: tuple[tuple[str, str, str], ...] = ()
    brought: Mapping[str, str] = field(default_factory=dict)


PRELUDE = '''
import sys

import numba, numpy as np, pandas as pd, pydantic, pytest

kind = np.dtype
# Records of which fields are attributes, as they are in compiled code.
np.dtype = lambda fields, align=False: kind((np.record, kind(fields, align=align)))
import rlpto.jobs, rlpto.performance.tables, rlpto.records, rlpto.rewards, rlpto.simulator.arrays
np.dtype = kind


def rlpto_command(*words):
    """Run a verb."""
    from rlpto.cli.main import run

    sys.argv = ["rlpto", *words]
    try:
        run()
    except SystemExit as ended:
        assert not ended.code, ended.code


def evaluated(*words):
    """Figures of FIFO, or of the policy asked for, on the jobs of log.csv."""
    rlpto_command(
        *("evaluate", "exp.yaml", "--trace", "log.csv", "--windows", "all", "--no-report", "--run-dir", "out", *words)
    )
    return pd.read_csv("out/cells.csv").iloc[0]


def scheduled(job, *gpus):
    """A cluster of 4 GPUs with one job that was given so many GPUs, each for a minute."""
    from rlpto.cluster import Allocation, Node
    from rlpto.jobs import Job
    from rlpto.performance.compile import compile_tables, load_profiles
    from rlpto.performance.tables import JobType
    from rlpto.simulator.cluster import SimulatedCluster
    from rlpto.simulator.settings import SimulatorSettings

    job = Job(name="only", submit_time=0.0, requested_gpus=4, max_gpus=4, **job)
    tables = compile_tables(load_profiles(None), [JobType(job.model, job.batch_size)], 4, 4)
    cluster = SimulatedCluster((Node(4),), [job], tables, SimulatorSettings(decide_on="interval"), 0)
    for count in gpus:
        cluster.apply(cluster.state(), Allocation(np.array([count])))
        cluster.advance()
    return cluster


def seen(cluster, name):
    """A feature of the only job in the agent's observation."""
    from rlpto.envs.features import JOB_FEATURES
    from rlpto.envs.observation import observe

    return observe(cluster.state(), 4, 3, 0).jobs[0, JOB_FEATURES.index(name)]


def compiled(function, *arguments):
    """What a function that was added gives once it is compiled."""
    numba.config.DISABLE_JIT = 0
    return numba.njit(error_model="numpy")(function)(*arguments)
'''

LOG = """\
timestamp,duration,num_gpus,cluster
2017-10-03 00:00:00,1000,2,a
2017-10-03 00:05:00,500,4,a
2017-10-03 00:06:00,900,1,a
"""
EXPERIMENT = """\
cluster: {nodes: [{count: 1, gpus: 4}]}
workload: {source: trace, windows: {hours: 0.1}}
policies: [fifo]
"""
PROFILE = """\
name: %s
description: Made up
source: None
samples: 12800.0
epochs: 2
batch: {base: 128, largest: 512, min_local: 16, max_local: 128}
throughput: %s
noise: {epochs: [0.0, 1.0], noise_scale: [1000.0, 2000.0]}
accuracy: {meaning: top-1, untrained: 0.1, final: 0.9, scale: 1.0, shape: 1.0}
rescale_delay: 20.0
errors: {throughput_median: 0.0, throughput_p90: 0.0, accuracy_rmse: 0.0, noise_log_rmse: 0.0}
"""

ADDITIONS = {
    "a policy": Addition(
        new={
            "rlpto/policies/halves.py": '''\
"""Every job half of the GPUs it asked for."""

from __future__ import annotations

import numpy as np

from rlpto.cluster import Allocation, ClusterState
from rlpto.policies.base import BasePolicy, NoOptions


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
                "from rlpto.policies.hesrpt import Hesrpt",
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
                "rlpto/rewards.py",
                "    classes: tuple[_ClassWeight",
                """\
    completions: float = Field(0.0, ge=0, le=LARGEST_WEIGHT)
    \"\"\"Reward for a job that finishes.\"\"\"
""",
            ),
            (
                "rlpto/rewards.py",
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
from rlpto.records import INTERVAL
from rlpto.rewards import RewardWeights, _completions
sums = np.zeros(1, INTERVAL)[0]
sums["finished"] = 3
assert compiled(_completions, sums, 0.0, RewardWeights(completions=2.0).record()[0]) == 6
""",
    ),
    "a reward term of a sum that is not kept yet": Addition(
        inserted=(
            ("rlpto/records.py", '        ("rescales", "i8"),\n        ("arrived"', '        ("waiting", "f8"),\n'),
            ("rlpto/records.py", "    to.rescales += more.rescales", "    to.waiting += more.waiting\n"),
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
                "rlpto/rewards.py",
                "    classes: tuple[_ClassWeight",
                '    waiting: float = Field(0.0, ge=0, le=LARGEST_WEIGHT)\n    """Cost of one hour without GPUs."""\n',
            ),
            (
                "rlpto/rewards.py",
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
                "@feature(CLUSTER_TABLE)\ndef cluster__capacity",
                '''\
@feature(JOB_TABLE)
def job__peak(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """log2(1 + most GPUs held so far) / 6"""
    return float(np.log2(1.0 + job.peak_gpus) / 6.0)


''',
            ),
        ),
        use="""
cluster = scheduled({"model": "cifar10", "epochs": 5.0, "data_size": 50_000.0}, 3, 1)
assert seen(cluster, "peak") == pytest.approx(np.log2(1 + 3) / 6)
from rlpto.envs.features import JOB_TABLE, job_facts
table = cluster.state().jobs
job, speed = table.records[0], table.speed[0]
assert compiled(JOB_TABLE[-1].function, job, speed, job_facts(job, speed, 0.0)) == pytest.approx(np.log2(4) / 6)
""",
    ),
    "an observation feature of a column that jobs do not have yet": Addition(
        inserted=(
            ("rlpto/jobs.py", '        ("grow_left", "f8"),\n', '        ("stalled", "f8"),\n'),
            (
                "rlpto/jobs.py",
                '        ("attained_service", "f8"),\n        ("rescale_delay"',
                '        ("stalled", "f8"),\n',
            ),
            ("rlpto/jobs.py", "        row.peak_gpus = job.peak_gpus", "        row.stalled = job.stalled\n"),
            (
                "rlpto/simulator/kernels.py",
                "        before, after, unused, trains = job.progress",
                "        job.stalled += delay\n",
            ),
            (
                "envs/features.py",
                "@feature(CLUSTER_TABLE)\ndef cluster__capacity",
                '''\
@feature(JOB_TABLE)
def job__stalled(job: Any, speed: FloatArray, facts: JobFacts) -> float:
    """log(1 + minutes of rescale delay had)"""
    return float(np.log1p(job.stalled / 60.0))


''',
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
    "a metric": Addition(
        inserted=(
            (
                "rlpto/evaluation/metrics.py",
                '    Metric("gpu_hours"',
                '    Metric("queueing_max", "queue max", "s", "lower", "Longest time from submit to first GPU."),\n',
            ),
            (
                "rlpto/evaluation/metrics.py",
                '        "gpu_hours": float(',
                '        "queueing_max": _percentile(waited, 100),\n',
            ),
        ),
        use="""
figures = evaluated()
assert figures.queueing_max == 2 * figures.queueing_mean > 0, "one of two jobs waits"
summary = pd.read_csv("out/summary.csv").set_index(["policy", "metric"])
assert summary.loc[("fifo", "queueing_max"), "mean"] == figures.queueing_max
""",
    ),
    "a trace format": Addition(
        new={
            "rlpto/workloads/importers/ours.py": '''\
"""A log of our own: second of submission and number of cards."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlpto.workloads.importers.base import Format, ImportResult, numbers
from rlpto.workloads.importers.csvfile import read_csv


def read(path: Path, skip_bad_lines: bool) -> ImportResult:
    """Read it."""
    table = read_csv(path, ("when", "cards"), skip_bad_lines)
    columns = {
        "name": np.array([str(line) for line in table.lines.number], dtype=object),
        "submit_time": numbers(table.lines, "when", table["when"]),
        "gpus": numbers(table.lines, "cards", table["cards"], low=1, whole=True),
    }
    return table.lines.finish(columns, origin=None)


FORMAT = Format("A format of our own", read, lambda head: head.startswith("when,cards"))
'''
        },
        brought={"ours.log": "when,cards\n5,2\n9,4\n"},
        use="""
from pathlib import Path

from rlpto.workloads.importers.registry import detect_format
from rlpto.workloads.trace import read_trace

assert detect_format(Path("ours.log")) == "ours"
rlpto_command("trace", "import", "ours", "ours.log", "-o", "jobs.parquet")
assert read_trace(Path("jobs.parquet")).gpus.tolist() == [2, 4]
""",
    ),
    "a throughput law": Addition(
        new={
            "rlpto/performance/tree.py": '''\
"""Throughput of training whose gradients are added up along a binary tree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ConfigDict, Field

from rlpto.arrays import FloatArray


@dataclass(frozen=True)
class TreeParams:
    """sample: seconds to compute the gradient of one. hop: seconds of each level of the tree."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    sample: Annotated[float, Field(gt=0)]
    hop: Annotated[float, Field(ge=0)]
    law: Literal["tree"] = "tree"

    def step_time(
        self, nodes: ArrayLike, replicas: ArrayLike, local_batch: ArrayLike, accumulation: ArrayLike = 0
    ) -> FloatArray:
        """See ThroughputLaw."""
        computed = self.sample * np.asarray(local_batch) * (np.asarray(accumulation) + 1)
        return np.asarray(computed + self.hop * np.log2(replicas) + 0.0 * np.asarray(nodes))
''',
            "rlpto/performance/profiles/treenet.yaml": PROFILE % ("treenet", "{law: tree, sample: 0.01, hop: 0.5}"),
        },
        inserted=(
            ("rlpto/performance/laws.py", '    "parameter_server": ServerParams,\n}', '    "tree": TreeParams,\n'),
            (
                "rlpto/performance/laws.py",
                "\nLAWS: Mapping",
                "from rlpto.performance.tree import TreeParams\n",
            ),
        ),
        use="""
job = {"model": "treenet", "epochs": 1.5, "data_size": 12_800.0, "batch_size": 128}
cluster = scheduled(job, *[4] * 10)
step = 0.01 * 128 / 4 + 0.5 * 2  # 4 GPUs, two levels
assert cluster.store.finish_time - cluster.store.start_time == pytest.approx(20.0 + 150 * step)
from rlpto.performance.profiles import load_profile, profile_yaml, builtin_profiles
from pathlib import Path
Path("again.yaml").write_text(profile_yaml(builtin_profiles()["treenet"]))
assert load_profile(Path("again.yaml")) == builtin_profiles()["treenet"]
""",
    ),
    "a training program": Addition(
        brought={
            "theirs/__init__.py": "",
            "theirs/lines.py": '''\
"""Which side of a line points lie on."""

import torch
from torch import nn
from torch.optim import SGD

from rlpto.ray_cluster.programs.base import Classifier


class Lines(Classifier):
    def __init__(self, points=40):
        inputs = torch.randn(points + 10, 2, generator=torch.Generator().manual_seed(0))
        super().__init__(inputs, (inputs.sum(1) > 0).long(), held_out=10)

    def model(self):
        return nn.Linear(2, 2)

    def optimizer(self, parameters):
        return SGD(parameters, lr=0.5)
''',
            "exp.yaml": """\
ray:
  programs:
    lines: {training: "theirs.lines:Lines", options: {points: 60}, samples: 60}
""",
        },
        use="""
from pathlib import Path

import torch
from rlpto.config import load_config
from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.worker.training import Trainer, weights_of

program = load_config(Path("exp.yaml")).ray.programs["lines"]
trainer = Trainer(
    JobSpec("job-1", "one", "session-1", program.training, ".", 20, 10.0, program.samples, program.options)
)
before, guessed = weights_of(trainer.network), trainer.evaluate()
trained = trainer.run(100)
assert (trained.steps, trained.samples, trained.finished) == (30, 600, True)
assert not torch.equal(weights_of(trainer.network), before)
assert trained.accuracy == trainer.evaluate() > guessed
""",
    ),
    "a verb": Addition(
        new={
            "rlpto/cli/greet.py": '''\
"""`rlpto greet`: be friendly."""

from __future__ import annotations

from rlpto.cli.common import LISTS, Verb


def greet(name: str) -> None:
    """Say hello."""
    print(f"hello {name}")


VERB = Verb(greet, LISTS, "rlpto greet you")
'''
        },
        use="""
import contextlib, io

said = io.StringIO()
with contextlib.redirect_stdout(said):
    rlpto_command("--help")
    rlpto_command("greet", "--help")
    rlpto_command("greet", "you")
assert "greet" in said.getvalue() and "Example: rlpto greet you" in said.getvalue()
assert said.getvalue().endswith("hello you\\n")
""",
    ),
    "a model": Addition(
        new={
            "rlpto/performance/profiles/mynet.yaml": PROFILE
            % ("mynet", "{alpha_c: 0.1, beta_c: 0.01, alpha_n: 0, beta_n: 0, alpha_r: 0, beta_r: 0, gamma: 1.0}")
        },
        use="""
figures = evaluated("--set", "workload.mapping.models={mynet: 1}")
assert figures.unfinished == 0
from pathlib import Path
(record,) = Path("out/cells").glob("*.npz")
assert set(np.load(record)["jobs.models"]) == {"mynet"}
""",
    ),
    "a setting": Addition(
        inserted=(
            (
                "rlpto/policies/srtf.py",
                "\n\nclass Srtf(",
                '''\
    at_most: int | None = None
    """Jobs that hold GPUs at once, at most."""
''',
            ),
            (
                "rlpto/policies/srtf.py",
                "        return Allocation(fit_in_order(",
                """\
        if self.options.at_most is not None:
            first = order[: self.options.at_most]
            return Allocation(fit_in_order(first, jobs.requested_gpus, state.capacity), order)
""",
            ),
        ),
        use="""
alone = evaluated("--policies", "srtf:at_most=1", "--set", "cluster.nodes=[{count: 2, gpus: 4}]")
both = evaluated("--policies", "srtf", "--fresh", "--set", "cluster.nodes=[{count: 2, gpus: 4}]", "--run-dir", "out2")
assert alone.queueing_mean > 0 == pd.read_csv("out2/cells.csv").iloc[0].queueing_mean
""",
    ),
    "a study of `make results`": Addition(
        inserted=(
            (
                "benchmarks/studies.yaml",
                "\nreward:\n",
                """
longest:
  runs:
  - policies: [config]

""",
            ),
            (
                "benchmarks/_results_numbers.py",
                "\ndef ablations(",
                """
def longest(plan: Plan, study: Study) -> Numbers:
    \"\"\"How many workloads and policies the study is about.\"\"\"
    return Numbers(shown={"workloads": len(plan.workloads), "runs": len(study.runs)}, saved={})


""",
            ),
            (
                "benchmarks/results.md.j2",
                "\n## Scale\n",
                """
{% endif %}
{% if longest %}
## Longest

{{ longest.runs }} run on {{ longest.workloads }} workload.
{% endif %}
{% if scale %}
""",
            ),
        ),
        use="""
import subprocess
from pathlib import Path

program = Path(rlpto.__file__).parents[1] / "benchmarks" / "results.py"
options = ["--only", "longest", "--workloads", "synthetic", "--folder", "kept", "--page", "page.md"]
subprocess.run([sys.executable, str(program), *options], check=True)
assert "## Longest" in Path("page.md").read_text() and "1 run on 1 workload." in Path("page.md").read_text()
""",
    ),
}
