"""ConfigurationManager against its acceptance behaviours D1 to D6; about two CPU-minutes.

D1 to D4 and D6 are simulated, on speed surfaces drawn by seeds; D5 trains a network on scikit-learn's digits.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from _studies import DIGITS, Part, Plan, Row, digits_trainer, play, server_tables
from scipy.stats import sem, t

from rlpto.core.cluster import Allocation, BackgroundLoad, ClusterShape, ClusterState, Node, place_background
from rlpto.core.jobs import Job
from rlpto.core.policy import Policy
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.performance.efficiency import NoiseCurve
from rlpto.performance.parameter_server import ServerParams
from rlpto.policies.configuration_manager import ConfigurationManager, ConfigurationManagerOptions, Reconfiguration
from rlpto.policies.rigid import Fifo
from rlpto.ray_cluster.worker.training import Trainer
from rlpto.simulator.settings import SimulatorSettings
from rlpto.store.program_keys import LrRule

NODES, CAPACITY = (Node(4, 2),) * 4, 16
"""16 GPUs and 8 CPU slots in all."""
WORKERS, SERVERS, MOST_WORKERS, MOST_SERVERS = 4, 1, 16, 8
"""Workers and servers that the job requests and has in the static run; the most that it may have."""
BATCH, DATA = 512, 50_000.0
LAW = ServerParams(a=1.0 / BATCH, b=0.03, c=0.02, d=0.001, e=0.002, servers=SERVERS, most_servers=MOST_SERVERS)
"""Seconds of a step of the middle surface: 0.37 with 4 workers and 1 server, 0.16 with 16 and 8."""
SPREAD = 0.15
"""Standard deviation of the logarithm of each parameter of a drawn surface."""
SURFACES = 20
STATIC_S = 15_561.0
"""Seconds of the static run in the reference, section 3."""
FREED_S = (600.0, 1500.0, 3000.0, 6000.0)
"""Seconds at which the background load ends, as in the reference."""
LATER_S = 1.7
"""Delay of this end from one surface to the next [s], which spreads it over the time between two reports."""
NEVER_S = 1e8
PERIOD_S, RESTART_S, INTERVAL_S = 30.0, 30.0, 10.0
SEEDS = range(5)
"""Seeds of real trainings."""
EPOCHS, GROWN_AT = 12, 0.3
"""Epochs of a real training, and the share of them after which the job grows from 4 to 16 workers."""
WORKER_BATCH = 16
"""Samples of a worker's step in a real training."""


class Outcome(NamedTuple):
    """The result of a run. events: changes that were decided. rescales: number of changes carried out. held:
    GPU-seconds. back: most epochs lost at once.
    """

    seconds: float
    events: tuple[Reconfiguration, ...]
    rescales: int
    held: float
    back: float


class ProgressWatch:
    """Decides as another policy does, and records the largest fall of a job's progress between two decisions."""

    back = progress = 0.0

    def __init__(self, policy: Policy) -> None:
        self.name, self.reset, self._policy = policy.name, policy.reset, policy

    def __call__(self, state: ClusterState) -> Allocation:
        """Record the progress, and return the policy's decision."""
        now = float(state.jobs.progress[0])
        self.back, self.progress = max(self.back, self.progress - now), now
        return self._policy(state)


def simulated(_: Plan) -> Part:
    """D1 to D4, and D6, over all surfaces."""
    rows: list[Row] = []
    laws = [_surface(seed) for seed in range(SURFACES)]
    static = [_played(law, NEVER_S, Fifo()) for law in laws]
    kept = [_played(law, NEVER_S, _manager()) for law in laws]
    overhead = max(now.seconds / before.seconds - 1 for now, before in zip(kept, static, strict=True))
    figures = {
        "D1 nothing freed: changes": sum(len(found.events) for found in kept),
        "D1 nothing freed: longest overhead": 100 * overhead,
    }
    ratio = float(np.mean([_epoch_ratio(law) for law in laws]))
    for freed in FREED_S:
        times = np.array([freed + LATER_S * seed for seed in range(SURFACES)])
        found = [_played(law, at, _manager()) for law, at in zip(laws, times.tolist(), strict=True)]
        seconds = np.array([now.seconds for now in found])
        saved = 100 * (1 - seconds / STATIC_S)
        first, last = (np.array([now.events[i].time + RESTART_S for now in found]) - times for i in (0, -1))
        after = min(now.events[-1].after[0] / CAPACITY for now in found)  # share of the GPUs that the job holds
        rows.append(
            {
                "freed at [s]": freed,
                "static [s]": STATIC_S,
                "dynamic, mean [s]": round(seconds.mean()),
                "saved, mean [%]": _round(saved, 1),
                "saved, least and most [%]": f"{saved.min():.1f} to {saved.max():.1f}",
                "first new processes after [s]": round(first.max()),
                "last change after [s]": round(last.mean()),
                "changes, mean": _round(np.array([len(now.events) for now in found]), 1),
                "epoch time after / before": round(ratio, 3),
                "GPUs in use, static": round(_used(static[0], freed), 3),
                "GPUs in use, dynamic": _round(np.array([_used(now, freed) for now in found]), 3),
                "in use after growth, least": round(after, 3),
            }
        )
        restarts = sum(now.rescales != len(now.events) for now in found)
        figures |= {
            f"D2 freed at {freed:.0f} s: new processes train after": float(first.max()),
            f"D3 freed at {freed:.0f} s: time saved, mean": float(saved.mean()),
            f"D4 freed at {freed:.0f} s: GPUs in use after growth, least": after,
            f"D6 freed at {freed:.0f} s: runs with restarts other than changes": restarts,
            f"D6 freed at {freed:.0f} s: most epochs lost": max(now.back for now in found),
        }
    late = [_played(law, STATIC_S - RESTART_S, _manager()) for law in laws]
    figures["D6 freed when less than a restart is left: changes"] = sum(len(now.events) for now in late)
    return Part(figures, rows)


def accuracies(_: Plan) -> Part:
    """D5: accuracy after `EPOCHS` passes over the data, with and without growth."""
    static = np.array([_trained("none", False, seed) for seed in SEEDS])
    found = Part(rows=[_accuracy_row("static", static, static)])
    rules: tuple[LrRule, ...] = ("none", "linear", "sqrt", "adascale")
    for rule in rules:
        grown = np.array([_trained(rule, True, seed) for seed in SEEDS])
        found.rows.append(_accuracy_row(f"grown, lr_rule {rule}", grown, static))
        drop = 100 * float((static - grown).mean())
        if rule == "none":
            noise = 200 * float(sem(static - grown))
            found.figures["D5 no scaling: gain in accuracy beyond noise"] = -drop - noise
        found.figures[f"D5 {'no scaling' if rule == 'none' else rule}: drop in accuracy"] = drop
    return found


def _accuracy_row(name: str, found: FloatArray, static: FloatArray) -> Row:
    """Accuracies of one way to train, and the mean loss of accuracy with its 95 % interval by Student's t."""
    drop = 100 * (static - found)
    half = float(t.ppf(0.975, len(drop) - 1) * sem(drop))
    return {
        "training": name,
        "accuracy, mean [%]": _round(100 * found, 2),
        "drop, mean [points]": _round(drop, 2),
        "drop, 95 % [points]": f"{drop.mean() - half:.2f} to {drop.mean() + half:.2f}",
    }


def _round(values: AnyArray, digits: int) -> float:
    return round(float(np.mean(values)), digits)


def _surface(seed: int) -> ServerParams:
    """A surface whose parameters are drawn around `LAW`."""
    rng = np.random.default_rng([17, seed])
    drawn = {name: getattr(LAW, name) * math.exp(rng.normal(0.0, SPREAD)) for name in "abcde"}
    return replace(LAW, **drawn)


def _steps(law: ServerParams, workers: int, servers: int) -> float:
    """Seconds of a step."""
    return float(replace(law, servers=servers).step_time(1, workers, BATCH / workers))


def _epoch_ratio(law: ServerParams) -> float:
    """Epoch time of the fastest configuration relative to the static one."""
    grid = [_steps(law, w, p) for w in range(1, MOST_WORKERS + 1) for p in range(1, MOST_SERVERS + 1)]
    return min(grid) / _steps(law, WORKERS, SERVERS)


def _manager() -> ConfigurationManager:
    return ConfigurationManager(ConfigurationManagerOptions(period=PERIOD_S))


def _played(law: ServerParams, freed: float, policy: Policy) -> Outcome:
    """Run a job that takes `STATIC_S` with its requested processes; others hold the remaining cluster until `freed`."""
    epochs = (STATIC_S - RESTART_S) * BATCH / _steps(law, WORKERS, SERVERS) / DATA
    job = Job("job", 0.0, "served", epochs, DATA, WORKERS, 1, MOST_WORKERS, batch_size=BATCH)
    shape = ClusterShape(NODES)
    load = BackgroundLoad(gpus=shape.capacity - WORKERS, cpus=shape.cpu_slots - SERVERS, until=freed)
    settings = SimulatorSettings(interval=INTERVAL_S)
    watched = ProgressWatch(policy)
    # A noise scale large enough that progress is counted in samples.
    changes = {"rescale_delay": RESTART_S, "samples": DATA, "noise": NoiseCurve((0.0,), (1e9,))}
    tables = server_tables({"served": law}, BATCH, MOST_WORKERS, **changes)
    record = play(NODES, [job], tables, watched, settings, background=place_background([load], shape))
    return Outcome(
        seconds=float(record.jobs.finish_time[0]),
        events=tuple(policy.events) if isinstance(policy, ConfigurationManager) else (),
        rescales=int(record.jobs.rescales[0]),
        held=float(record.jobs.gpu_seconds[0]),
        back=watched.back,
    )


def _used(found: Outcome, freed: float) -> float:
    """Share of the GPUs that were held, over the whole run."""
    background = (CAPACITY - WORKERS) * min(freed, found.seconds)
    return (found.held + background) / (CAPACITY * found.seconds)


def _trained(rule: LrRule, grows: bool, seed: int) -> float:
    """Accuracy after `EPOCHS` passes over the digits, by 4 workers, or by 16 after the share `GROWN_AT` of the passes.

    Synchronous workers compute the same update as one worker with all their samples: one process stands for them. When
    the job grows it continues from a checkpoint, with its optimizer's state.
    """

    def started() -> Trainer:
        return digits_trainer("DigitsMlp", WORKERS * WORKER_BATCH, float(EPOCHS), rule, seed, learning_rate=0.05)

    trainer, samples, grown = started(), 0, False
    total = EPOCHS * DIGITS
    while samples < total:
        if grows and not grown and samples >= GROWN_AT * total:
            state, trainer, grown = trainer.state(), started(), True
            trainer.load(state)
        batch = (MOST_WORKERS if grown else WORKERS) * WORKER_BATCH
        samples += trainer.run(trainer.position.step + 1, batch).samples
    return trainer.evaluate()
