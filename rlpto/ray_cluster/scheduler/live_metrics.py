"""What can be watched while jobs run: curves for TensorBoard, and gauges that Ray's dashboard and Prometheus show."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.records import intervals
from rlpto.rewards import REWARD_PARTS, RewardWeights, reward_terms

FLUSH_SECONDS = 5
"""How long a curve may lag behind."""


class LiveCurves:
    """TensorBoard scalars of one session; the step of all of them is the second of the session.

    jobs/NAME/...: loss, accuracy, progress [epochs], GPUs held, samples_per_second, noise_scale. cluster/...: GPUs up
    and held, jobs active. reward/...: the reward since this scheduler began, in all and in its parts.
    folder: of the events. weights: of the reward.
    """

    def __init__(self, folder: Path, weights: RewardWeights) -> None:
        # TensorBoard's own writer rather than torch's: a scheduler needs no torch, which takes seconds to import.
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        writer: Any = EventFileWriter
        self._writer = writer(str(folder), flush_secs=FLUSH_SECONDS)
        self._weights = weights

    def __call__(self, cluster: RayCluster) -> None:
        """Note how things stand."""
        step = round(cluster.time)
        for number, job in enumerate(cluster.jobs):
            report = cluster.reports.get(job.name)
            if report is None:
                continue
            curves = {
                "loss": report.loss,
                "accuracy": report.accuracy,
                "progress": report.progress,
                "gpus": float(cluster.columns.held[number]),
                "samples_per_second": report.samples_per_second,
                "noise_scale": report.noise_scale,
            }
            self._write(f"jobs/{job.name}", curves, step)
        self._write("cluster", counts(cluster), step)
        *gains, unfinished, gpu_seconds, delay = cluster.columns.totals.tolist()
        parts = reward_terms(intervals(np.array([gains]), unfinished, gpu_seconds, delay), self._weights)[0]
        reward = {"sum": float(parts.sum()), **dict(zip(REWARD_PARTS, parts.tolist(), strict=True))}
        self._write("reward", reward, step)

    def _write(self, group: str, values: Mapping[str, float], step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        event: Any = Event(wall_time=time.time(), step=step)
        scalar: Any = Summary.Value
        finite = [scalar(tag=f"{group}/{name}", simple_value=x) for name, x in values.items() if math.isfinite(x)]
        event.summary.value.extend(finite)
        self._writer.add_event(event)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class LiveGauges:
    """Gauges through `ray.util.metrics`, as `ray_rlpto_...` on every page of Ray's metrics; tag: the session."""

    def __init__(self, session: str) -> None:
        from ray.util.metrics import Gauge

        described = {
            "jobs_running": "Jobs that hold GPUs",
            "jobs_waiting": "Jobs that are submitted and hold none",
            "gpus_up": "GPUs on nodes that are alive",
            "gpus_held": "GPUs that jobs hold",
            "rescales": "Changes of running jobs' GPUs so far",
        }
        self._gauges = {
            name: Gauge(f"rlpto_{name}", description=text, tag_keys=("session",)) for name, text in described.items()
        }
        for gauge in self._gauges.values():
            gauge.set_default_tags({"session": session})

    def __call__(self, cluster: RayCluster) -> None:
        """Say how things stand."""
        now = counts(cluster)
        for name, gauge in self._gauges.items():
            gauge.set(now[name])


def counts(cluster: RayCluster) -> dict[str, float]:
    """GPUs and jobs of a cluster as they are now."""
    held, active = cluster.columns.held, cluster.columns.active
    return {
        "jobs_running": float(np.count_nonzero(active & (held > 0))),
        "jobs_waiting": float(np.count_nonzero(active & (held == 0))),
        "gpus_up": float(cluster.up_gpus),
        "gpus_held": float(held.sum()),
        "rescales": float(cluster.store.rescales.sum()),
    }
