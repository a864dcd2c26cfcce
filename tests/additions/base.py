"""What an addition to the project is, and what the use of every one of them begins with."""

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
import rlpto.core.jobs, rlpto.performance.tables, rlpto.core.records, rlpto.core.rewards, rlpto.simulator.arrays
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
    from rlpto.core.cluster import Allocation, Node
    from rlpto.core.jobs import Job
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
