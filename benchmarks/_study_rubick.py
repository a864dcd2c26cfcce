"""Rubick's three workloads of 406 jobs on 64 A800, under `rubick` and other policies; behind docs/systems/rubick.md."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
from _studies import Part, Plan
from _systems import play

from rlpto.core.cluster import Node
from rlpto.core.jobs import Job
from rlpto.core.queues import QueueSettings
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.profiles import LLM, PLAN_MARK
from rlpto.performance.tables import JobType
from rlpto.policies.registry import make_policy
from rlpto.simulator.settings import SimulatorSettings

NODES, GPUS = 8, 8
WORKLOADS = ("base", "bp", "mt")
USER, BEST, CHOSEN = "the user's", "best of each size", "chosen"
"""Whose plans jobs run by: the third are those of the policy."""
OURS = ("rubick", CHOSEN)
RIVALS = (("sia", USER), ("fifo:backfill=true", USER))
"""Those that the authors compare with too: the second is what Synergy is without CPUs as a resource."""
PLAIN = ("fifo", "las", "tiresias", "optimus", "srtf", "index", "rubick")
CASES = (OURS, *RIVALS, *((policy, USER) for policy in PLAIN), ("sia", BEST), ("index", BEST))
SETTINGS = SimulatorSettings(interval=60, decide_on="interval")
"""Decisions each minute, as in Rubick's simulator."""
QUEUE = QueueSettings(aging_normal=1e9, aging_low=1e9)
"""No waiting job rises in class, as in the originals."""


def jobs_of(submitted: pd.DataFrame, plans: str) -> list[Job]:
    """Jobs of a workload; guaranteed ones are of class high."""
    found, profiles = [], load_profiles(LLM)
    for row in submitted.itertuples():
        plan = (
            row.exec_plan
        )  # of digits: pipeline stages, tensor degree, and a data-parallel one that follows from the GPUs
        plan = f"{plan[0]}x{plan[1]}" if plan.isdigit() else plan
        model = f"rubick-{row.application}" + (PLAN_MARK + plan) * (plans != BEST)
        facts = profiles.facts(model)
        work, limits = row.steps * facts.batch.base / facts.epochs, (row.num_gpus, 1, NODES * GPUS)
        found.append(Job(row.name, row.submission_time, model, facts.epochs, work, *limits, priority=1 - row.is_sla))
    return found


def compared(plan: Plan) -> Part:
    """Mean JCT and makespan of every case on every workload, and by how much they exceed those of `rubick`."""
    assert plan.data is not None, "the study needs the workloads"
    part, found = Part(), {}
    for workload, case in product(WORKLOADS, CASES):
        file = plan.data / "llm" / "rubick" / "workloads" / f"{workload}.csv"
        jobs = jobs_of(pd.read_csv(file, dtype={"exec_plan": str}), case[1])
        types = [JobType(model) for model in sorted({job.model for job in jobs})]
        tables = compile_tables(load_profiles(LLM), types, NODES * GPUS, GPUS, choose_plans=case == OURS)
        records = play([Node(GPUS)] * NODES, jobs, tables, make_policy(case[0]), SETTINGS, QUEUE).jobs
        jct, high = records.finish_time - records.submit_time, records.priority == 0
        found[workload, case] = np.array([jct.mean(), records.finish_time.max()])
        ratios = found[workload, case] / found[workload, OURS]
        part.rows.append(
            {
                "workload": workload,
                "policy": case[0],
                "plans": case[1],
                "mean JCT [min]": round(jct.mean() / 60, 1),
                "by rubick's": f"{ratios[0]:.2f}",
                "makespan [h]": round(records.finish_time.max() / 3600, 1),
                "by its": f"{ratios[1]:.2f}",
                "p99 JCT [h]": round(np.quantile(jct, 0.99) / 3600, 1),
                "guaranteed jobs: mean JCT [min]": round(jct[high].mean() / 60, 1) if high.any() else "",
                "rescales a job": round(records.rescales.mean(), 2),
            }
        )
    most = np.max([found[workload, case] / found[workload, OURS] for workload, case in product(WORKLOADS, RIVALS)], 0)
    for figure, ratio in zip(("mean JCT", "makespan"), most.tolist(), strict=True):
        part.figures[f"{figure} of sia or fifo:backfill=true by that of rubick, most of three workloads"] = ratio
    return part
