"""Fits to the speeds that real jobs report: errors at sizes that were not seen, on measured steps; see docs/ray.md.

Batches are fixed, and of a step of several GPUs nothing is known but its length. Half a CPU-minute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
from _plan import Part, Plan

from rlpto.knowledge.prior import prior_without
from rlpto.performance.measured import MeasuredProfiles
from rlpto.performance.tables import JobType
from rlpto.ray_cluster.messages import Measured
from rlpto.ray_cluster.scheduler.speed_fits import estimated_throughput
from rlpto.ray_cluster.settings import ProgramSettings

PER_NODE, MOST = 4, 64
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SEEN = ((1,), (1, 2), (1, 4), (2, 4), (4, 8), (1, 2, 4), (1, 4, 8), (4, 8, 16), (1, 2, 4, 8), (1, 2, 4, 8, 16))
"""GPUs of the sizes that a job has had; it is asked about the others of SIZES."""
LARGER = (1, 4, 16)
"""Batches, in base batches."""
NOISE, DRAWS = 0.05, 2
"""Standard deviation of the logarithm of a measured step, and draws of it."""
SLOWER = {"": 1.0, "one size ten times as slow": 10.0}


def errors(plan: Plan) -> Part:
    """Mean of |log(believed / measured)| over sizes not seen, by fit and number of sizes seen."""
    assert plan.data is not None
    profiles = MeasuredProfiles(plan.data / "profiles")
    found: dict[tuple[str, str], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for model, batch, steps in measured(profiles):
        program = ProgramSettings(training="measured:Steps", batch_size=batch)
        for seen in SEEN:
            asked = [size for size in steps if size not in seen]
            if not asked or not steps.keys() >= set(seen):
                continue
            for draw in range(DRAWS):
                for case, slower in SLOWER.items():
                    if slower > 1 and len(seen) < 3:
                        continue
                    rng = np.random.default_rng([draw, len(seen)])
                    factor = np.exp(NOISE * rng.standard_normal(len(seen)))
                    factor[rng.integers(len(seen))] *= slower
                    speeds = tuple(
                        Measured(size, nodes_of(size), batch / (steps[size] * times), 100)
                        for size, times in zip(seen, factor.tolist(), strict=True)
                    )
                    for name, prior in (("Pollux's rules", None), ("with a prior", prior_without(model))):
                        law = estimated_throughput(program, speeds, prior, MOST).law
                        off = [np.log(law.step_time(nodes_of(k), k, batch / k) / steps[k]) for k in asked]
                        found[name, case][len(seen)].append(float(np.abs(off).mean()))
    rows: list[dict[str, object]] = []
    for (name, case), by_size in sorted(found.items(), key=lambda item: item[0][1]):
        row: dict[str, object] = {"fit": f"{name}, {case}" if case else name}
        row |= {
            f"{size} sizes seen": f"{np.mean(by_size[size]):.2f}" if size in by_size else "" for size in range(1, 6)
        }
        rows.append(row | {"all": f"{np.mean(np.concatenate(list(by_size.values()))):.2f}"})
    return Part(rows=rows)


def measured(profiles: MeasuredProfiles) -> Iterator[tuple[str, int, Mapping[int, float]]]:
    """Models, batches, and seconds of a step by GPUs, on as few nodes as possible."""
    for model in profiles.models:
        limits = profiles.limits(model)
        for batch in sorted({min(limits.largest, times * limits.base) for times in LARGER}):
            steps = {}
            for size in SIZES:
                if limits.min_local <= batch / size <= limits.max_local:
                    groups = (PER_NODE,) * (size // PER_NODE) + ((size % PER_NODE,) if size % PER_NODE else ())
                    steps[size] = float(profiles.batch_performance(JobType(model, batch), groups).step[0])
            yield model, batch, steps


def nodes_of(size: int) -> int:
    """Nodes that GPUs of this number are on."""
    return -(-size // PER_NODE)
