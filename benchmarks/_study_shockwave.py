"""Shockwave's published runs: docs/systems/shockwave.md."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from _studies import Part, Plan
from _systems import play

from rlpto.core.cluster import Node
from rlpto.core.jobs import Job
from rlpto.core.queues import QueueSettings
from rlpto.core.records import RunRecord
from rlpto.evaluation.metrics import completion_times, measure
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.performance.compile import compile_tables
from rlpto.performance.scheduled import ScheduledModel, ScheduledProfiles, by_accordion, by_noise_scale
from rlpto.performance.tables import JobType
from rlpto.policies.registry import make_policy
from rlpto.simulator.settings import SimulatorSettings

TRACE = "120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace"
GPUS, ROUND_S, RENEW_S, START_S = 32, 120.0, 1000.0, 20.0
"""Of the cluster; of a round; between two computations of shares; without progress at a start."""
SAMPLES = {"ResNet-18": 50_000, "ResNet-50": 100_000, "Transformer": 10_000, "LM": 59_675, "Recommendation": 117_907}
"""In an epoch."""
LARGEST = {"ResNet-18": 256, "ResNet-50": 128, "Transformer": 128, "LM": 80, "Recommendation": 8192}
"""Batch sizes, of one GPU."""
DOUBLES_AT: Mapping[tuple[str, int], Mapping[int, tuple[int, ...]]] = {
    ("ResNet-18", 16): {1: (31, 41, 51, 71), 2: (21, 31, 91, 111), 4: (11, 21, 81, 91)},
    ("ResNet-18", 32): {1: (21, 31, 51), 2: (11, 21, 41), 4: (21, 31, 61)},
    ("ResNet-18", 64): {1: (11, 31), 2: (21, 41), 4: (11, 61)},
    ("ResNet-18", 128): {1: (11,), 2: (41,), 4: (11,)},
    ("ResNet-50", 32): {2: (101, 111), 4: (131, 221)},
    ("ResNet-50", 64): {1: (101,), 2: (81,), 4: (191,)},
    ("LM", 5): {1: (31, 41, 61, 71), 2: (31, 51, 61, 71), 4: (11, 31, 71, 91)},
    ("LM", 10): {1: (11, 21, 41), 2: (11, 31, 41), 4: (11, 31, 61)},
    ("LM", 20): {1: (11, 41), 2: (31, 41), 4: (11, 61)},
    ("LM", 40): {1: (11,), 2: (11,), 4: (61,)},
    ("Recommendation", 512): {1: (21, 41, 71, 91)},
    ("Recommendation", 1024): {1: (21, 51, 91)},
    ("Recommendation", 2048): {1: (21, 41)},
    ("Recommendation", 4096): {1: (41,)},
}
"""Epochs at which a job of mode gns doubles its batch, by model, first batch and GPUs."""
FAIR = 1.05
"""Finish-time fairness up to which a job counts as treated fairly."""

UNKNOWN = (math.nan,) * 4
SPEC = f"round={ROUND_S:g},renew={RENEW_S:g}"
COLUMNS = ("makespan [s]", "mean JCT [s]", "worst fairness", "unfair [%]")
RUNS = {
    f"shockwave:round={ROUND_S:g}": ((24_197, 9_958, 1.78, 5), (25_265, 10_509, 1.82, 10)),
    f"gavel:{SPEC}": ((33_208, 11_274, 2.95, 25), (34_619, 12_113, 3.46, 28)),
    f"themis:{SPEC}": ((31_929, 11_302, 3.44, 23), (27_841, 10_930, 2.85, 20)),
    f"allox:{SPEC}": ((32_489, 9_926, 4.96, 28), (31_971, 9_611, 4.63, 27)),
    f"max_sum_throughput:{SPEC},unit=steps": ((31_909, 9_655, 4.98, 25), (34_701, 9_703, 5.20, 28)),
    f"min_duration:{SPEC}": ((24_205, 19_807, 7.74, 74), (25_555, 17_831, 5.79, 73)),
    f"gandiva_fair:{SPEC}": ((32_367, 12_574, 1.85, 52), UNKNOWN),
    f"max_sum_throughput:{SPEC}": (UNKNOWN, UNKNOWN),
}
"""What was published of each policy, simulated and physical: COLUMNS."""


class Submitted(NamedTuple):
    """A job of the trace: mode is static, accordion or gns; batch: the first, of one GPU; steps: at that batch."""

    model: str
    batch: int
    steps: int
    gpus: int
    mode: str
    time: float

    @property
    def epochs(self) -> float:
        """Epochs; the last may be a part."""
        return self.steps / math.ceil(SAMPLES[self.model] / self.batch)


def parity(plan: Plan) -> Part:
    """Every policy on the published trace, next to the figures of Shockwave's own simulator and cluster."""
    assert plan.data is not None
    submitted, speeds = read_trace(plan.data / "shockwave" / TRACE), read_speeds(plan.data / "shockwave")
    models = {str(number): trained(one, speeds, judged=False) for number, one in enumerate(submitted)}
    fair = np.array([trained(one, speeds, judged=True).seconds.sum() for one in submitted])
    found = Part()
    for spec, (simulated, physical) in RUNS.items():
        record, name = replay(submitted, models, spec), re.sub(f":{SPEC},?|:round.*", ":", spec).strip(":")
        values, fairness = measure(record), finish_time_fairness(record, fair)
        shares = 100 * float((fairness > FAIR).mean())
        ours = (round(values["makespan"]), round(values["jct_mean"]), round(float(fairness.max()), 2), round(shares))
        for column, mine, published in zip(COLUMNS[:3], ours, simulated, strict=False):
            if not math.isnan(published):
                found.figures[f"{name}, {column.split(' [')[0]} off by"] = 100 * abs(mine / published - 1)
        cells = zip(COLUMNS, zip(ours, simulated, physical, strict=True), strict=True)
        row = {column: " / ".join(f"{one:,}" for one in cell).replace("nan", "-") for column, cell in cells}
        more = {"rho max": round(values["fairness_max"], 2), "p99 of a decision [s]": round(values["latency_p99"], 3)}
        found.rows.append({"policy": name, **row, **more})
    return found


def replay(submitted: list[Submitted], models: dict[str, ScheduledModel], spec: str) -> RunRecord:
    """One policy on the trace, by the rules of Shockwave's simulator."""
    tables = compile_tables(ScheduledProfiles(models), [JobType(name) for name in models], 4, 4)
    jobs = [
        Job(name, one.time, name, one.epochs, models[name].samples, one.gpus, one.gpus, one.gpus)
        for one, name in zip(submitted, models, strict=True)
    ]
    settings = SimulatorSettings(interval=ROUND_S, decide_on="interval")
    nodes = [Node(4)] * (GPUS // 4)
    return play(nodes, jobs, tables, make_policy(spec), settings, QueueSettings(aging_normal=1e9))


def trained(one: Submitted, speeds: dict[tuple[str, int], dict[int, float]], *, judged: bool) -> ScheduledModel:
    """What a job trains in Shockwave's simulator, or (judged) what its fairness is judged by there.

    The simulator changes a batch as soon as a round ends in the epoch before, for gns two epochs before.
    """
    samples, largest = SAMPLES[one.model], LARGEST[one.model]
    epochs = math.ceil(one.epochs)
    batches: IntArray = np.full(epochs, one.batch)
    if one.mode == "accordion" and one.model != "Transformer":
        batches = by_accordion(one.batch, largest, epochs, critical(one, epochs, judged=judged))
    elif one.mode == "gns":
        by_gpus: Mapping[int, tuple[int, ...]] = DOUBLES_AT.get((one.model, one.batch), {})
        doubles_at, ahead = by_gpus.get(one.gpus, ()), 0 if judged else 2
        batches = by_noise_scale(one.batch, largest, epochs, [epoch - ahead for epoch in doubles_at])
    return ScheduledModel(samples, batches, speeds[one.model, one.gpus], one.gpus, START_S)


def critical(one: Submitted, epochs: int, *, judged: bool) -> Collection[int]:
    """Epochs in which accordion trains with the first batch.

    The table by which fairness is judged has more of them than the simulator trains: the first 30 %, and two more
    regimes of Recommendation.
    """
    first = {512: 30, 1024: 30, 2048: 40}.get(one.batch, 10) if one.model == "Recommendation" else 10
    found = {*range(20 if (one.model, one.batch) == ("ResNet-18", 256) else first)}
    if one.model == "ResNet-50":
        found |= {epoch for epoch in range(epochs) if epoch % 30 < 10}
    elif one.model == "ResNet-18":
        found |= {*range(150, 160), *range(250, 260)}
    elif one.model == "Recommendation" and judged:
        found |= {*range(60, 70), *range(80, 90)}
    return found | {*range(math.floor(0.3 * epochs) + 1)} if judged else {epoch - 1 for epoch in found}


def finish_time_fairness(record: RunRecord, alone: FloatArray) -> FloatArray:
    """[n] as Shockwave defines it: JCT by the time alone [n] s by the contention, jobs of the whole trace by GPUs."""
    return np.asarray(completion_times(record.jobs) / alone / max(1.0, len(alone) / GPUS))


def read_trace(path: Path) -> list[Submitted]:
    """Jobs of a trace in the format of Shockwave, whose lines begin as "LM (batch size 5)"."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = line.split("\t")
        model, batch = cells[0].removesuffix(")").split(" (batch size ")
        found.append(Submitted(model, int(batch), int(cells[5]), int(cells[6]), cells[7], float(cells[11])))
    return found


def read_speeds(folder: Path) -> dict[tuple[str, int], dict[int, float]]:
    """Steps/s on V100 by model and GPUs, then by batch size."""
    found: dict[tuple[str, int], dict[int, float]] = {}
    measured = json.loads((folder / "tacc_throughputs.json").read_text(encoding="utf-8"))
    for key, value in measured["v100"].items():
        match = re.fullmatch(r"\('(\S+) \(batch size (\d+)\)', (\d+)\)", key)
        if match is not None:
            found.setdefault((match[1], int(match[3])), {})[int(match[2])] = value["null"]
    return found
