"""Repeats Shockwave's published runs and prints the table of README.md: `python -m rlpto_shockwave.study`."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from rlpto.core.cluster import Node
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.metrics import completion_times, finish_time_fairness, measure
from rlpto.io.arrays import IntArray
from rlpto.io.markdown import markdown_table
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings
from rlpto_shockwave.scheduled import ScheduledModel, compile_scheduled

FOLDER = Path(os.environ.get("RLPTO_DATA", "shared")) / "shockwave"
TRACE = "120_0.2_5_100_40_25_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace"
PUBLISHED = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
GPUS, ROUND_S, RENEW_S, START_S = 32, 120.0, 1000.0, 20.0  # renew: between two computations of shares
FAIR = 1.05  # finish-time fairness up to which a job counts as treated fairly
COLUMNS = ("policy", "makespan [s]", "mean JCT [s]", "worst fairness", "unfair [%]", "off by [%]", "rho max", "p99 [s]")


class Submitted(NamedTuple):
    """A job of the trace. batch: first batch size of one GPU. steps: at that batch. mode: static, accordion or gns."""

    model: str
    batch: int
    steps: int
    gpus: int
    mode: str
    time: float

    @property
    def epochs(self) -> float:
        """Number of epochs, which need not be whole."""
        return float(self.steps / math.ceil(PUBLISHED["samples"][self.model] / self.batch))


def main() -> None:
    """Print the table. Exits with 1 if a figure is further off than README.md says."""
    if not (FOLDER / TRACE).is_file():
        sys.exit(f"error: {FOLDER}: expected the published trace {TRACE} (set RLPTO_DATA)")
    rows, failed = parity(FOLDER)
    print("\n".join(markdown_table(rows)))
    sys.exit(f"further off than README.md says: {', '.join(failed)}" if failed else 0)


def parity(folder: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Run every policy on the published trace. Returns a table, and the figures that are further off than allowed."""
    submitted, speeds = read_trace(folder / TRACE), read_speeds(folder)
    fair = np.array([trained(one, speeds, judged=True).seconds.sum() for one in submitted])
    rows, failed = list[dict[str, str]](), list[str]()
    for name, published in PUBLISHED["runs"].items():
        record = replay(submitted, speeds, name)
        values = measure(record)
        fairness = completion_times(record.jobs) / fair / (len(fair) / GPUS)
        ours = [round(values["makespan"]), round(values["jct_mean"]), round(float(fairness.max()), 2)]
        ours.append(round(100 * float((fairness > FAIR).mean())))
        its = [published.get(key, ["-"] * len(ours)) for key in ("simulated", "cluster")]
        cells = [" / ".join(f"{one:,}" if one != "-" else one for one in cell) for cell in zip(ours, *its, strict=True)]
        off = [100 * abs(mine / theirs - 1) for mine, theirs in zip(ours, its[0], strict=True) if theirs != "-"]
        for (what, most), by in zip(PUBLISHED["most"].items(), off, strict=False):
            failed += [f"{name}, {what}"] if by > most and what not in published.get("missed", ()) else []
        cells += [" / ".join(f"{by:.4g}" for by in off[:3]) or "-", f"{finish_time_fairness(record).max():.2f}"]
        rows.append(dict(zip(COLUMNS, [name, *cells, f"{values['latency_p99']:.3f}"], strict=True)))
    return rows, failed


def replay(submitted: list[Submitted], speeds: dict[tuple[str, int], dict[int, float]], policy: str) -> RunRecord:
    """Run one policy on the trace, by the rules of Shockwave's simulator."""
    models = {str(number): trained(one, speeds, judged=False) for number, one in enumerate(submitted)}
    jobs = [
        Job(name, one.time, name, one.epochs, models[name].samples, one.gpus, one.gpus, one.gpus)
        for one, name in zip(submitted, models, strict=True)
    ]
    settings = SimulatorSettings(interval=ROUND_S, decide_on="interval")
    cluster = SimulatedCluster((Node(4),) * (GPUS // 4), jobs, compile_scheduled(models, 4), settings)
    options = f"round={ROUND_S:g}" + (f",renew={RENEW_S:g}" if policy != "shockwave" else "")
    decides = make_policy(f"{policy}{',' if ':' in policy else ':'}{options}")
    return run(cluster, decides, QueueSettings(aging_normal=1e9), RewardWeights())


def trained(one: Submitted, speeds: dict[tuple[str, int], dict[int, float]], *, judged: bool) -> ScheduledModel:
    """Return the training of a job in Shockwave's simulator, or the one by which its fairness is judged there.

    Accordion (Agarwal et al., MLSys 2021) trains with the first batch in critical regimes, else with the largest. By
    the gradient noise scale (gns; McCandlish et al., arXiv:1812.06162) a batch doubles, up to the largest. The
    simulator changes a batch as soon as a round ends in the epoch before, for gns two epochs before.
    """
    largest, epochs = PUBLISHED["largest"][one.model], math.ceil(one.epochs)
    batches: IntArray = np.full(epochs, one.batch)
    if one.mode == "accordion" and one.model != "Transformer":
        batches = np.where(np.isin(np.arange(epochs), [*critical(one, epochs, judged=judged)]), one.batch, largest)
    elif one.mode == "gns":
        by_batch = PUBLISHED["doubles_at"].get(one.model, {})
        doubles_at = np.array(by_batch.get(one.batch, {}).get(one.gpus, ()), dtype=np.int64) - (0 if judged else 2)
        doubled = np.searchsorted(doubles_at, np.arange(epochs), side="right")
        batches = np.minimum(one.batch * 2**doubled, max(one.batch, largest))
    return ScheduledModel(PUBLISHED["samples"][one.model], batches, speeds[one.model, one.gpus], one.gpus, START_S)


def critical(one: Submitted, epochs: int, *, judged: bool) -> Collection[int]:
    """Return the epochs in which accordion trains with the first batch. The table by which fairness is judged has more:
    the first 30 %, and two more regimes of Recommendation."""
    first = {512: 30, 1024: 30, 2048: 40}.get(one.batch, 10) if one.model == "Recommendation" else 10
    found = {*range(20 if (one.model, one.batch) == ("ResNet-18", 256) else first)}
    if one.model == "ResNet-50":
        found |= {epoch for epoch in range(epochs) if epoch % 30 < 10}
    elif one.model == "ResNet-18":
        found |= {*range(150, 160), *range(250, 260)}
    elif one.model == "Recommendation" and judged:
        found |= {*range(60, 70), *range(80, 90)}
    return found | {*range(math.floor(0.3 * epochs) + 1)} if judged else {epoch - 1 for epoch in found}


def read_trace(path: Path) -> list[Submitted]:
    """Read the jobs of a trace in Shockwave's format, whose lines begin like "LM (batch size 5)"."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = line.split("\t")
        model, batch = cells[0].removesuffix(")").split(" (batch size ")
        found.append(Submitted(model, int(batch), int(cells[5]), int(cells[6]), cells[7], float(cells[11])))
    return found


def read_speeds(folder: Path) -> dict[tuple[str, int], dict[int, float]]:
    """Read steps/s on V100 by model and GPUs, then by batch size."""
    found: dict[tuple[str, int], dict[int, float]] = {}
    measured = json.loads((folder / "tacc_throughputs.json").read_text(encoding="utf-8"))
    for key, value in measured["v100"].items():
        if match := re.fullmatch(r"\('(\S+) \(batch size (\d+)\)', (\d+)\)", key):
            found.setdefault((match[1], int(match[3])), {})[int(match[2])] = value["null"]
    return found


if __name__ == "__main__":
    main()
