"""What the use of every addition begins with."""

import sys
from importlib import import_module

import numba
import numpy as np
import pandas as pd
import pytest  # noqa: F401

import rlpto  # noqa: F401

kind = np.dtype
# Records of which fields are attributes, as they are in compiled code.
np.dtype = lambda fields, align=False: kind((np.record, kind(fields, align=align)))
for module in ("core.jobs", "performance.tables", "core.records", "core.rewards", "simulator.arrays"):
    import_module(f"rlpto.{module}")
np.dtype = kind


def rlpto_command(*words):
    """Run a verb."""
    from rlpto.cli.main import run

    sys.argv = ["rlpto", *words]
    try:
        run()
    except SystemExit as ended:
        if ended.code:
            raise


def evaluated(*words):
    """Figures of FIFO, or of the policy asked for, on the jobs of log.csv."""
    rlpto_command(
        *("evaluate", "exp.yaml", "--trace", "log.csv", "--windows", "all", "--no-report", "--run-dir", "out", *words)
    )
    return pd.read_csv("out/cells.csv").iloc[0]


def scheduled(job, *gpus):
    """A cluster of 4 GPUs with one job that was given these numbers of GPUs, each for a minute."""
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
