"""ConfigurationManager against its acceptance behaviours D1 to D6; about two CPU-minutes.

D1 to D4 and D6 are simulated, on speed surfaces drawn by seeds; D5 trains a network on scikit-learn's digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from _common import Check

from rlpto.core.cluster import Allocation, ClusterShape, ClusterState, Node
from rlpto.core.external_load import BackgroundLoad, place_background
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.policy import Policy
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.io.arrays import FloatArray
from rlpto.performance.compile import compile_tables
from rlpto.performance.efficiency import NoiseCurve
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.parameter_server import ServerParams
from rlpto.performance.profiles import builtin_profiles
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.policies.configuration_manager import ConfigurationManager, ConfigurationManagerOptions, Reconfiguration
from rlpto.policies.fifo import Fifo
from rlpto.ray_cluster.messages import JobSpec, LrRule
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

Row = dict[str, object]

NODES = (Node(4, 2),) * 4
"""16 GPUs and 8 CPU slots."""
WORKERS, SERVERS, MOST_WORKERS, MOST_SERVERS = 4, 1, 16, 8
"""What the job asks for, and has in the static run; what it may have."""
BATCH = 512
LAW = ServerParams(a=1.0 / BATCH, b=0.03, c=0.02, d=0.001, e=0.002, servers=SERVERS, most_servers=MOST_SERVERS)
"""Seconds of a step of the middle surface: 0.37 with 4 workers and 1 server, 0.16 with 16 and 8."""
SPREAD = 0.15
"""Standard deviation of the logarithm of each parameter of a drawn surface."""
SURFACES = 20
STATIC_S = 15_561.0
"""Seconds of the static run in the reference, section 3."""
FREED_S = (600.0, 1500.0, 3000.0, 6000.0)
"""Seconds at which the background load ends, as there."""
LATER_S = 1.7
"""Seconds by which it ends later on each further surface, so that it ends at any time between two reports."""
NEVER_S = 1e8
PERIOD_S, RESTART_S, INTERVAL_S = 30.0, 30.0, 10.0
SEEDS = range(5)
"""Seeds of real trainings."""
EPOCHS, GROWN_AT = 12, 0.3
"""Epochs of a real training, and the share of them after which the job grows from 4 to 16 workers."""
WORKER_BATCH = 16
"""Samples of a worker's step in a real training."""


@dataclass(frozen=True)
class Outcome:
    """A run. seconds: of it. events: changes that were decided. rescales: that were carried out. held: GPU-seconds.
    full_s: when the job had its last configuration, NaN if it was never changed. back: most epochs lost at once.
    """

    seconds: float
    events: tuple[Reconfiguration, ...]
    rescales: int
    held: float
    full_s: float
    back: float


class WatchedPolicy:
    """A policy whose states are looked at. back: most epochs by which the progress of a job fell between two."""

    def __init__(self, policy: Policy) -> None:
        self.name, self._policy = policy.name, policy
        self.back, self._progress = 0.0, 0.0

    def reset(self, seed: int) -> None:
        """As the policy."""
        self._policy.reset(seed)

    def __call__(self, state: ClusterState) -> Allocation:
        """Look, and decide as the policy does."""
        progress = float(state.jobs.progress[0])
        self.back = max(self.back, self._progress - progress)
        self._progress = progress
        return self._policy(state)


def measure(data: Path | None) -> tuple[list[Check], dict[str, list[Row]]]:  # noqa: ARG001
    """Checks and tables; `data` is not needed."""
    checks, tables = simulated()
    found, rows = accuracies()
    return [*checks, *found], {**tables, "D5: validation accuracy of real trainings": rows}


def simulated() -> tuple[list[Check], dict[str, list[Row]]]:
    """D1 to D4, and D6, over all surfaces."""
    rows: list[Row] = []
    laws = [_surface(seed) for seed in range(SURFACES)]
    static = [_played(law, NEVER_S, Fifo()) for law in laws]
    kept = [_played(law, NEVER_S, _manager()) for law in laws]
    overhead = max(now.seconds / before.seconds - 1 for now, before in zip(kept, static, strict=True))
    checks = [
        Check("D1 nothing freed: changes", sum(len(found.events) for found in kept), "changes", 0, False),
        Check("D1 nothing freed: longest overhead", 100 * overhead, "%", 2, False),
    ]
    for freed in FREED_S:
        times = [freed + LATER_S * seed for seed in range(SURFACES)]
        found = [_played(law, at, _manager()) for law, at in zip(laws, times, strict=True)]
        saved = np.array([1 - now.seconds / STATIC_S for now in found])
        first = max(now.events[0].time + RESTART_S - at for now, at in zip(found, times, strict=True))
        full = np.mean([now.full_s - at for now, at in zip(found, times, strict=True)])
        after = min(_used_after(now) for now in found)
        rows.append(
            {
                "freed at [s]": freed,
                "static [s]": STATIC_S,
                "dynamic, mean [s]": round(float(np.mean([now.seconds for now in found]))),
                "saved, mean [%]": round(100 * float(saved.mean()), 1),
                "saved, least and most [%]": f"{100 * saved.min():.1f} to {100 * saved.max():.1f}",
                "first new processes after [s]": round(first),
                "last change after [s]": round(float(full)),
                "changes, mean": round(float(np.mean([len(now.events) for now in found])), 1),
                "epoch time after / before": round(float(np.mean([_epoch_ratio(law) for law in laws])), 3),
                "GPUs in use, static": round(_used(static[0], freed), 3),
                "GPUs in use, dynamic": round(float(np.mean([_used(now, freed) for now in found])), 3),
                "in use after growth, least": round(after, 3),
            }
        )
        checks += [
            Check(f"D2 freed at {freed:.0f} s: new processes train after", first, "s", 60 + RESTART_S, False),
            Check(f"D3 freed at {freed:.0f} s: time saved, mean, at least", 100 * float(saved.mean()), "%", 30, True),
            Check(f"D3 freed at {freed:.0f} s: time saved, mean, at most", 100 * float(saved.mean()), "%", 55, False),
            Check(f"D4 freed at {freed:.0f} s: GPUs in use after growth, least", after, "", 0.85, True),
        ]
        differ = sum(now.rescales != len(now.events) for now in found)
        lost = max(now.back for now in found)
        checks.append(Check(f"D6 freed at {freed:.0f} s: runs with restarts other than changes", differ, "", 0, False))
        checks.append(Check(f"D6 freed at {freed:.0f} s: most epochs lost", lost, "epochs", 0, False))
    late = [_played(law, STATIC_S - RESTART_S, _manager()) for law in laws]
    changed = sum(len(now.events) for now in late)
    checks.append(Check("D6 freed when less than a restart is left: changes", changed, "changes", 0, False))
    return checks, {"D2 to D4: one job, 12 of 16 GPUs and 7 of 8 CPU slots are freed": rows}


def accuracies() -> tuple[list[Check], list[Row]]:
    """D5: accuracy after so many passes over the data, with and without growth."""
    static = np.array([_trained("none", False, seed) for seed in SEEDS])
    rows: list[Row] = [_accuracy_row("static", static, static)]
    checks = []
    rules: tuple[LrRule, ...] = ("none", "linear", "sqrt", "adascale")
    for rule in rules:
        grown = np.array([_trained(rule, True, seed) for seed in SEEDS])
        rows.append(_accuracy_row(f"grown, lr_rule {rule}", grown, static))
        drop = 100 * float((static - grown).mean())
        if rule == "none":
            noise = 100 * float((static - grown).std(ddof=1)) / math.sqrt(len(static)) * 2
            checks.append(Check("D5 no scaling: gain in accuracy beyond noise", -drop - noise, "points", 0, False))
            checks.append(Check("D5 no scaling: drop in accuracy", drop, "points", 1.5, False))
        else:
            checks.append(Check(f"D5 {rule}: drop in accuracy", drop, "points", 0.5, False))
    return checks, rows


def _accuracy_row(name: str, found: FloatArray, static: FloatArray) -> Row:
    drop = 100 * (static - found)
    return {
        "training": name,
        "accuracy, mean [%]": round(100 * float(found.mean()), 2),
        "drop, mean [points]": round(float(drop.mean()), 2),
        "drop, 95 % [points]": f"{drop.mean() - _half(drop):.2f} to {drop.mean() + _half(drop):.2f}",
    }


def _half(values: FloatArray) -> float:
    """Half the width of the 95 % interval of a mean (Student's t)."""
    from scipy.stats import t

    return float(t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))


def _surface(seed: int) -> ServerParams:
    """A drawn surface."""
    rng = np.random.default_rng([17, seed])
    drawn = {name: getattr(LAW, name) * math.exp(rng.normal(0.0, SPREAD)) for name in "abcde"}
    return replace(LAW, **drawn)


def _tables(law: ServerParams) -> SpeedTables:
    """Tables of one model that trains by the law; its noise scale is so large that progress goes by samples."""
    profile = replace(
        builtin_profiles()["cifar10"], name="served", throughput=law, rescale_delay=RESTART_S, samples=50_000.0
    )
    profile = replace(profile, noise=NoiseCurve((0.0,), (1e9,)))
    return compile_tables(
        FittedProfiles({"served": profile}), [JobType("served", BATCH)], MOST_WORKERS, 4, choose_servers=True
    )


def _steps(law: ServerParams, workers: int, servers: int) -> float:
    """Seconds of a step."""
    return float(law.with_servers(servers).step_time(1, workers, BATCH / workers))


def _epoch_ratio(law: ServerParams) -> float:
    """Epoch time of the fastest configuration relative to the static one."""
    grid = [_steps(law, w, p) for w in range(1, MOST_WORKERS + 1) for p in range(1, MOST_SERVERS + 1)]
    return min(grid) / _steps(law, WORKERS, SERVERS)


def _manager() -> ConfigurationManager:
    return ConfigurationManager(ConfigurationManagerOptions(period=PERIOD_S))


def _played(law: ServerParams, freed: float, policy: Policy) -> Outcome:
    """A job that takes `STATIC_S` in its own configuration, while others hold the rest of the cluster until `freed`."""
    epochs = (STATIC_S - RESTART_S) * BATCH / _steps(law, WORKERS, SERVERS) / 50_000.0
    job = Job("job", 0.0, "served", epochs, 50_000.0, WORKERS, 1, MOST_WORKERS, batch_size=BATCH)
    shape = ClusterShape(NODES)
    load = BackgroundLoad(gpus=shape.capacity - WORKERS, cpus=shape.cpu_slots - SERVERS, until=freed)
    settings = SimulatorSettings(interval=INTERVAL_S)
    cluster = SimulatedCluster(NODES, [job], _tables(law), settings, background=place_background([load], shape))
    watched = WatchedPolicy(policy)
    record = run(cluster, watched, QueueSettings(), RewardWeights())
    events = tuple(policy.events) if isinstance(policy, ConfigurationManager) else ()
    return Outcome(
        seconds=float(record.jobs.finish_time[0]),
        events=events,
        rescales=int(record.jobs.rescales[0]),
        held=float(record.jobs.gpu_seconds[0]),
        full_s=events[-1].time + RESTART_S if events else math.nan,
        back=watched.back,
    )


def _used(found: Outcome, freed: float) -> float:
    """Share of the GPUs that somebody held, over the whole run."""
    capacity = ClusterShape(NODES).capacity
    background = (capacity - WORKERS) * min(freed, found.seconds)
    return (found.held + background) / (capacity * found.seconds)


def _used_after(found: Outcome) -> float:
    """Share of the GPUs that the job held from its last change on."""
    return found.events[-1].after[0] / ClusterShape(NODES).capacity


def _trained(rule: LrRule, grows: bool, seed: int) -> float:
    """Accuracy after `EPOCHS` passes over the digits, by 4 workers, or by 16 from `GROWN_AT` of the passes on.

    Workers that wait for each other do what one does with all their samples, so that one process stands for them. When
    the job grows it goes on from a checkpoint, with its optimizer's state.
    """
    from rlpto.ray_cluster.worker.training import Trainer

    spec = JobSpec(
        id="job",
        name="digits",
        session="digits",
        training="rlpto.ray_cluster.programs.digits:DigitsMlp",
        options={"learning_rate": 0.05},
        folder="",
        batch_size=WORKERS * WORKER_BATCH,
        epochs=float(EPOCHS),
        data_size=1437,
        seed=seed,
        lr_rule=rule,
        device="cpu",
    )
    trainer, samples, total = Trainer(spec), 0, EPOCHS * spec.data_size
    grown = False
    while samples < total:
        if grows and not grown and samples >= GROWN_AT * total:
            state, trainer, grown = trainer.state(), Trainer(spec), True
            trainer.load(state)
        batch = MOST_WORKERS * WORKER_BATCH if grown else spec.batch_size
        samples += trainer.run(trainer.position.step + 1, batch).samples
    return trainer.evaluate()
