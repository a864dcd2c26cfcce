"""Tune the 18 weights that steer the index for jobs that choose their batch sizes, by CMA-ES on generated workloads.

    python benchmarks/_tune_steering.py --start configs/tuned/pollux-steering.yaml -o FILE.yaml [--generations 40]

True speeds, declared epochs; the goal is the mean logarithm of mean JCT over the generated workloads (101 to 106).
About 2 CPU-seconds a candidate, 12 candidates a generation. The weight of priority stays: these jobs have one class.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import _common
import cma
import numpy as np

from rlpto.envs.actions import ACTION_FEATURES, steps
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import FloatArray
from rlpto.policies.index import Index, IndexOptions
from rlpto.policies.index_weights import load_weights, save_weights

FREE = [at for at, name in enumerate(ACTION_FEATURES) if name != "priority"]


def cost(experiment: Experiment, weights: FloatArray) -> float:
    """Mean logarithm of the mean JCT [s] over the windows."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        save_weights(weights, Path(folder) / "weights.yaml")
        policy = Index(IndexOptions(weights=Path(folder) / "weights.yaml"))
        for window in experiment.windows():
            jobs = experiment.run_policy(policy, window, 0).jobs
            found.append(np.log(np.mean(jobs.finish_time - jobs.submit_time)))
    return float(np.mean(found))


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("--start", type=Path, required=True, help="weights to start from")
    arguments.add_argument("--out", "-o", type=Path, required=True, help="where the best are written, whenever found")
    arguments.add_argument("--generations", type=int, default=40)
    arguments.add_argument("--sigma", type=float, default=0.5, help="first standard deviation, in steps of an action")
    arguments.add_argument("--seed", type=int, default=1)
    options = arguments.parse_args()
    workloads = _common.needed(None, "pollux", "generated")
    profiles = _common.needed(None, "profiles")
    overrides = [
        f"workload.path={json.dumps(str(workloads / '*.csv'))}",
        f"profiles.folder={json.dumps(str(profiles))}",
        "workload.mapping.adaptive_batch=true",
    ]
    with _common.bad_input():
        experiment = Experiment(load_config(_common.CONFIGS / "pollux.yaml", overrides))
        first, unit = load_weights(options.start), np.array(steps())

        def weights_at(point: FloatArray) -> FloatArray:
            weights = first.copy()
            weights[FREE] += point * unit[FREE]
            return weights

        best = cost(experiment, first)
        search = cma.CMAEvolutionStrategy(
            np.zeros(len(FREE)), options.sigma, {"seed": options.seed, "popsize": 12, "verbose": -9}
        )
        for generation in range(options.generations):
            points = search.ask()
            costs = [cost(experiment, weights_at(point)) for point in points]
            search.tell(points, costs)
            tried = [*zip(points, costs, strict=True), (search.mean, cost(experiment, weights_at(search.mean)))]
            point, lowest = min(tried, key=lambda pair: pair[1])
            if lowest < best:
                best = lowest
                save_weights(weights_at(point), options.out)
            print(f"generation {generation}: mean JCT {np.exp(lowest):.1f} s, best {np.exp(best):.1f} s", flush=True)


if __name__ == "__main__":
    main()
