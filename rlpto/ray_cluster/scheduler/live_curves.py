"""Live curves for TensorBoard while jobs run: reward, GPUs, and every job's progress."""

from __future__ import annotations

import errno
import io
import math
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from rlpto.core.rewards import REWARD_PARTS, RewardWeights, reward_terms
from rlpto.io.errors import system_reason
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.session_database import say_on_stderr

FLUSH_INTERVAL_S = 5.0
"""Longest delay of a curve."""
MAX_WAITING_BYTES = 1_000_000
"""Most bytes of events that wait while the disk is full; later events are dropped."""
REPORTED = "loss", "accuracy", "progress", "samples_per_second", "noise_scale"
"""Curves of a job taken from its reports."""


class LiveCurves:
    """TensorBoard scalars of one session. Their step is the second of the session.

    ray_jobs/NAME/...: loss, accuracy, progress [epochs], GPUs held, samples_per_second, noise_scale. ray/...: GPUs up
    and held, jobs active. ray_reward/...: the reward since this scheduler began, total and by part. TensorBoard sorts
    by name and shows them after the agents' eval/...

    folder: folder of the events. weights: weights of the reward. say: called with one line when the disk refuses
    events.
    """

    def __init__(self, folder: Path, weights: RewardWeights, say: Callable[[str], object] = say_on_stderr) -> None:
        self._file = EventFile(folder, say)
        self._weights = weights

    def __call__(self, cluster: RayCluster) -> None:
        """Add a point to each curve."""
        step = round(cluster.time)
        for number, (job, key) in enumerate(zip(cluster.jobs, cluster.ids, strict=True)):
            report = cluster.tracker.reports.get(key)
            if report is None:
                continue
            curves = {name: getattr(report, name) for name in REPORTED}
            self._write(f"ray_jobs/{job.name}", {**curves, "gpus": float(cluster.columns.held[number])}, step)
        held, active = cluster.columns.held, cluster.columns.active
        counts = {
            "jobs_running": float(np.count_nonzero(active & (held > 0))),
            "jobs_waiting": float(np.count_nonzero(active & (held == 0))),
            "gpus_up": float(cluster.up_gpus),
            "gpus_held": float(held.sum()),
            "rescales": float(cluster.store.rescales.sum()),
        }
        self._write("ray", counts, step)
        parts = reward_terms(cluster.columns.totals, self._weights)[0]
        reward = {"sum": float(parts.sum()), **dict(zip(REWARD_PARTS, parts.tolist(), strict=True))}
        self._write("ray_reward", reward, step)

    def _write(self, group: str, values: Mapping[str, float], step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        event = Event(wall_time=time.time(), step=step)
        for name, value in values.items():
            if math.isfinite(value):
                event.summary.value.append(Summary.Value(tag=f"{group}/{name}", simple_value=value))
        self._file.add(event.SerializeToString())

    def close(self) -> None:
        """Write pending events."""
        self._file.flush()


class EventFile:
    """A new file of TensorBoard events in `folder`. If the disk refuses events, up to `MAX_WAITING_BYTES` of them wait
    and `say` is called once; jobs are not disturbed. TensorBoard's own writer would end its thread."""

    def __init__(self, folder: Path, say: Callable[[str], object]) -> None:
        # Not torch's writer: torch takes seconds to import, and a scheduler does not need it.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        self._path, self._say = folder / name, say
        self._waiting = io.BytesIO()
        self._records = RecordWriter(self._waiting)
        self._flushed_at, self._refused = time.monotonic(), False
        self.add(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())

    def add(self, event: bytes) -> None:
        """Append an event. It is written within `FLUSH_INTERVAL_S`, if there is room."""
        if self._waiting.tell() < MAX_WAITING_BYTES:
            self._records.write(event)
        if time.monotonic() >= self._flushed_at + FLUSH_INTERVAL_S:
            self.flush()

    def flush(self) -> None:
        """Write all pending events, or none."""
        self._flushed_at = time.monotonic()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab", buffering=0) as file:
                end = file.tell()
                if file.write(self._waiting.getbuffer()) != self._waiting.tell():
                    file.truncate(end)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as refused:
            if not self._refused:
                reason = system_reason(refused)
                self._say(f"{self._path.parent}: live curves cannot be written now ({reason}): jobs go on")
            self._refused = True
            return
        self._refused = False
        self._waiting.seek(0)
        self._waiting.truncate()
