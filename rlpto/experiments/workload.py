"""The workload of a configuration: traces, then job types, speed tables, windows and jobs, in this order."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from rlpto.arrivals.online import Past, past_of
from rlpto.core.cluster import ClusterShape
from rlpto.core.job_store import stop_epochs
from rlpto.core.jobs import FinishedJob, Job
from rlpto.experiments.config import Config
from rlpto.forecasting.series import MONDAY, local_seconds
from rlpto.io.errors import ConfigError, JobError, TraceError
from rlpto.performance.compile import chosen_batch_sizes, compile_tables
from rlpto.performance.efficiency import useful_gpus
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.workloads.calibration import load_calibration
from rlpto.workloads.files import KEYS, files_by_split, read_any, stem
from rlpto.workloads.frozen import FrozenJobs, read_jobs
from rlpto.workloads.listed import LISTED_WINDOW, listed_jobs, listed_trace, mix
from rlpto.workloads.load import draw_trace, offered_load, scale_load
from rlpto.workloads.mapping import job_types, map_jobs, requested_work, type_order
from rlpto.workloads.synthetic import generate
from rlpto.workloads.trace import Trace
from rlpto.workloads.windows import Window, select, split_windows

if TYPE_CHECKING:
    from rlpto.performance.measured import MeasuredProfiles

HOUR, DAY = 3600.0, 86_400.0
Choice = Literal["batch_sizes", "servers"]
CHOICES: tuple[Choice, ...] = ("batch_sizes", "servers")
"""Choices of some policies in addition to numbers of GPUs: batch sizes, and numbers of parameter servers."""
REPEATED = 1.5
"""Mean repetition of recorded jobs in a workload from which on there is a warning."""


class Repetition(NamedTuple):
    """Effect of scaling a workload to its load: numbers of recorded jobs, and of jobs taken from them."""

    recorded: int
    taken: int

    @property
    def is_high(self) -> bool:
        """Whether recorded jobs are repeated at least REPEATED times on average."""
        return self.taken / self.recorded >= REPEATED

    @property
    def text(self) -> str:
        """A sentence stating how often the recorded jobs occur."""
        times = self.taken / self.recorded
        made = f"The workload has {self.taken:,} jobs, made of {self.recorded:,} recorded ones"
        return f"{made}: each stands in it {times:,.1f} times on average, with other times of arrival."


class WindowedWorkload:
    """The windows of a workload and the jobs in each. Every part is made when first needed.

    shape: shape of the cluster, for whose GPUs traces are scaled to the wanted load. profiles: speeds of the models.
    """

    def __init__(self, config: Config, shape: ClusterShape, profiles: FittedProfiles | MeasuredProfiles) -> None:
        self._config, self._settings, self._shape, self._profiles = config, config.workload, shape, profiles
        self._tables: dict[frozenset[Choice], SpeedTables] = {}
        self._drawn: dict[str, Trace] = {}
        self._lasting: dict[int, tuple[Trace, list[Job]]] = {}

    # Traces ---------------------------------------------------------------------------------------------------------

    @property
    def description(self) -> str:
        """Description of the workload for messages."""
        if self._settings.source == "synthetic":
            return f"synthetic workload {self._settings.calibration}"
        if self._settings.source == "jobs":
            return "workload.jobs"
        return ", ".join(str(path) for path in self._settings.path)

    @cached_property
    def files(self) -> dict[str, tuple[Path, ...]]:
        """Trace files by split, from `files_by_split`. A trace that is cut into windows counts as test."""
        paths = {split: getattr(self._settings, key) for split, key in KEYS.items()}
        return files_by_split(paths, self._settings.draws > 0)

    @property
    def is_cut(self) -> bool:
        """Whether the windows are parts of one trace, so that other jobs were submitted before a window."""
        return self._settings.source in ("synthetic", "trace")

    @cached_property
    def scaled(self) -> tuple[Trace, float, int]:
        """The trace that is cut into windows, at the wanted load; the seconds it covers; and its number of jobs
        before scaling to the load."""
        workload = self._settings
        if workload.source == "synthetic":
            trace, span = self._synthetic(), workload.days * DAY
        else:
            trace = read_any(self._one_file(), workload.format)
            # The end lies just after the last job, so the last window contains it.
            end = float(np.nextafter(trace.submit_time[-1], np.inf))
            skipped = workload.skip_days * DAY
            if skipped >= end:
                raise ConfigError(f"workload.skip_days: {workload.skip_days:g}, but the trace has {end / DAY:.4g} days")
            trace, span = self._mixed(trace.slice(skipped, end)), end - skipped
        trace = self._fitted(trace)
        recorded = len(trace)
        if workload.load is not None:
            cap = workload.mapping.max_duration
            trace = scale_load(trace, workload.load, self._shape.capacity, span, self._config.seed, cap)
        return trace, span, recorded

    def _synthetic(self) -> Trace:
        """Generate a trace with about the wanted load by making whole submissions more or less frequent."""
        workload, seed = self._settings, self._config.seed
        calibration = load_calibration(workload.calibration)
        trace = self._mixed(generate(calibration, workload.days, seed))
        if workload.load is None:
            return trace
        fitted = self._fitted(trace)
        cap = workload.mapping.max_duration
        load = offered_load(fitted.gpus, fitted.duration, self._shape.capacity, workload.days * DAY, cap)
        if load == 0:
            return trace
        return self._mixed(generate(calibration, workload.days, seed, workload.load / load))

    def _one_file(self) -> Path:
        """Return the file of a workload that has only one."""
        files = self.files["test"]
        if len(files) != 1:
            raise ConfigError(f"workload.path: source {self._settings.source} expects one file, got {len(files)}")
        return files[0]

    def _mixed(self, trace: Trace) -> Trace:
        """Return the trace; with `workload.mixture`, its submit times with jobs of these classes."""
        classes = self._settings.mixture
        return mix(trace, classes, self._config.seed) if classes else trace

    def _fitted(self, trace: Trace) -> Trace:
        """Return the trace without jobs that are too large for the cluster, if the settings skip such jobs."""
        if self._settings.mapping.oversized != "skip":
            return trace
        return trace.take(trace.gpus <= trace.allowed_types(self._shape.gpus_by_type)[1])

    @cached_property
    def _traces(self) -> dict[Path, Trace]:
        """Traces of all files, without jobs that are too large if the settings skip such jobs."""
        paths = [path for files in self.files.values() for path in files]
        return {path: self._fitted(read_any(path, self._settings.format)) for path in dict.fromkeys(paths)}

    @cached_property
    def _listed(self) -> dict[str, list[Job]]:
        """Jobs by window of a workload with source jobs or frozen."""
        workload, most = self._settings, self._shape.most_gpus
        if workload.source == "jobs":
            return {LISTED_WINDOW: listed_jobs(workload.jobs, self._profiles.facts, most, workload.metric)}
        found = self._frozen.windows
        return {window: sorted(jobs, key=lambda job: job.submit_time) for window, jobs in found.items()}

    @cached_property
    def _frozen(self) -> FrozenJobs:
        """The content of the file of a workload with source frozen."""
        return read_jobs(self._one_file())

    @cached_property
    def _recorded(self) -> list[tuple[Window, Trace]]:
        """Windows with their recorded jobs, in order of time: parts of a trace, or whole files."""
        if self.is_cut:
            trace, span, _ = self.scaled
            parts = split_windows(span, self._settings.windows).values()
            return [(window, trace.slice(window.start, window.end)) for windows in parts for window in windows]
        if self._settings.source == "files":
            named = [(stem(path), split, self._traces[path]) for split in self.files for path in self.files[split]]
        else:
            named = [(name, "test", listed_trace(jobs)) for name, jobs in self._listed.items()]
        return [
            (Window(name, split, 0.0, float(trace.submit_time[-1]) if len(trace) else 0.0), trace)
            for name, split, trace in named
        ]

    # Job types and speed tables -------------------------------------------------------------------------------------

    @property
    def models(self) -> tuple[str, ...]:
        """Models from which jobs may be drawn: the programs of real jobs if there are any, else all profiles."""
        return tuple(sorted(self._config.ray.programs)) or self._profiles.models

    @cached_property
    def _job_types(self) -> tuple[list[JobType], int]:
        """Every job type of the workload, and the most GPUs a job may hold."""
        workload, most = self._settings, self._shape.most_gpus
        if workload.source in ("jobs", "frozen"):
            jobs = [job for window in self._listed.values() for job in window]
            types, most = {job.type for job in jobs}, max(job.max_gpus for job in jobs)
        else:
            traces = [trace for _, trace in self._recorded if len(trace)]
            if not traces:
                raise TraceError(f"{self.description}: no jobs in any window")
            types = {
                job_type._replace(gpu_types=names)
                for trace in traces
                for names in set(trace.allowed_types(self._shape.gpus_by_type)[0])
                for job_type in job_types(trace, workload.mapping, self.models, workload.metric, self._batch_sizes)
            }
            most = min(most, max(*(int(trace.gpus.max()) for trace in traces), workload.mapping.max_gpus))
        return sorted(types, key=type_order), most

    def _batch_sizes(self, model: str) -> list[int]:
        """Batch sizes that jobs of a model may get: the model's choices, or its base batch size if it has none."""
        return chosen_batch_sizes(self._profiles, JobType(model)) or [self._profiles.facts(model).batch.base]

    def tables(self, choices: Collection[Choice] = ()) -> SpeedTables:
        """Return the speeds of every job type, for as many GPUs as a job may hold. choices: choices of a policy whose
        speeds are included."""
        chosen, shape = frozenset(choices), self._shape
        if chosen not in self._tables:
            self._tables[chosen] = compile_tables(
                self._profiles,
                *self._job_types,
                shape.gpus_per_node,
                gpu_types=shape.node_sizes,
                choose_batches="batch_sizes" in chosen,
                choose_servers="servers" in chosen,
            ).within(shape.gpus_by_type)
        return self._tables[chosen]

    # Windows and jobs -----------------------------------------------------------------------------------------------

    @cached_property
    def _sources(self) -> dict[str, tuple[Window, Trace]]:
        """Each window with its recorded jobs, or with the jobs that it is drawn from: then `NAME-00`, `NAME-01`, ...,
        numbered across splits. Other windows without jobs are left out."""
        found, number = [pair for pair in self._recorded if len(pair[1])], Counter[str]()
        if self._settings.draws:
            found = []
            for file, trace in self._recorded:
                for _ in range(self._settings.draws):
                    name = f"{file.name}-{number[file.name]:02d}"
                    number[file.name] += 1
                    found.append((Window(name, file.split, 0.0, self._settings.windows.hours * HOUR), trace))
        if not found:
            raise TraceError(f"{self.description}: no jobs in any window")
        return {window.name: (window, trace) for window, trace in found}

    @cached_property
    def windows(self) -> dict[str, Window]:
        """All windows in which jobs were submitted, by name, in order of time.

        Raises TraceError or ConfigError if there is no trace, or it cannot be cut into the configured windows.
        """
        return {name: window for name, (window, _) in self._sources.items()}

    def names(self, split: str | None = None, required: bool = True) -> list[str]:
        """Return the names of a split's windows, at most `workload.windows.limit`. split default: the evaluation's.

        Raises ConfigError if there are none and `required` is True.
        """
        split = self._config.evaluation.split if split is None else split
        windows = [window for window in self.windows.values() if window.split == split]
        if required and not windows:
            have = sorted({window.split for window in self.windows.values()})
            raise ConfigError(
                f"{self.description}: no {split} windows with jobs, only {' and '.join(have)}; "
                "expected another evaluation.split, or other workload.windows"
            )
        wanted = self._settings.windows
        chosen = windows if wanted.limit is None else select(windows, wanted.limit, wanted.seed)
        return [window.name for window in chosen]

    def trace(self, window: str) -> Trace:
        """Return the recorded jobs of a window, with times from its start. The window's name and the config's seed
        determine the jobs of a drawn window, which has the wanted load."""
        workload, (_, trace) = self._settings, self._sources[window]
        if not workload.draws:
            return trace
        if window not in self._drawn:
            span = workload.windows.hours * HOUR
            work = requested_work(trace, self.tables(), workload.mapping, self._shape.gpus_per_node)
            target = None if workload.load is None else workload.load * self._shape.capacity * span
            seed = (self._config.seed, zlib.crc32(window.encode()))
            self._drawn[window] = draw_trace(trace, work, target, span, seed)
        return self._drawn[window]

    def jobs(self, window: str, seed: int) -> list[Job]:
        """Return the jobs of a window. Raises JobError for a job that the cluster cannot run."""
        workload, shape, factor = self._settings, self._shape, self._config.ray.arrivals
        if workload.source in ("jobs", "frozen"):
            jobs = self._listed[window]
            large = next((job for job in jobs if job.max_gpus > shape.most_gpus), None)
            if large is not None and workload.source == "frozen":
                raise JobError(
                    f"job {large.name} of window {window} may hold {large.max_gpus} GPUs, but the cluster has "
                    f"{shape.most_gpus} for one job"
                )
        elif workload.mapping.lasting:
            trace, every = self._mapped_trace(seed)
            span = self.windows[window]
            first, end = np.searchsorted(trace.submit_time, (span.start, span.end)).tolist()
            jobs = [replace(job, submit_time=job.submit_time - span.start) for job in every[first:end]]
        else:
            jobs = self._mapped(self.trace(window), window_seed(window, seed))
        return jobs if factor == 1 else [replace(job, submit_time=job.submit_time * factor) for job in jobs]

    def _mapped(self, trace: Trace, seed: int) -> list[Job]:
        """Return the jobs of a trace."""
        workload, shape = self._settings, self._shape
        return map_jobs(
            trace,
            self.tables(),
            workload.mapping,
            seed,
            shape.most_gpus,
            shape.gpus_per_node,
            self._useful_gpus,
            workload.metric,
            shape.gpus_by_type,
        )

    def _mapped_trace(self, seed: int) -> tuple[Trace, list[Job]]:
        """The recorded jobs of all windows, and the jobs made of them together."""
        if seed not in self._lasting:
            trace = self.scaled[0]
            known = np.isfinite(trace.duration) | (self._settings.mapping.mode == "given")
            windows = np.array([(window.start, window.end) for window in self.windows.values()])
            begun = np.searchsorted(windows[:, 0], trace.submit_time, side="right") - 1
            trace = trace.take(known & (begun >= 0) & (trace.submit_time < windows[begun, 1]))
            self._lasting[seed] = trace, self._mapped(trace, seed)
        return self._lasting[seed]

    def finished_before(self, window: str, seed: int, days: float | None) -> tuple[FinishedJob, ...]:
        """Return the jobs of the trace that were submitted up to `days` before a window, default: at any time, and had
        finished when it began, by the recorded times; none where every window has jobs of its own.

        days: frozen jobs have no dates, so all count or none (0).
        """
        if self._settings.source == "frozen":
            return () if days == 0 else self._frozen.finished_before(window)
        if not self._settings.mapping.lasting:
            return ()
        (trace, jobs), start = self._mapped_trace(seed), self.windows[window].start
        since = -np.inf if days is None else start - days * DAY
        known = (trace.submit_time >= since) & (trace.submit_time + trace.duration <= start)
        finished = [jobs[number] for number in np.flatnonzero(known).tolist()]
        ends = stop_epochs(finished, self.tables())
        return tuple(FinishedJob(job.type, job.user, end) for job, end in zip(finished, ends, strict=True))

    def _useful_gpus(self, job_type: JobType) -> int:
        """Most GPUs over which a job's batch can be spread."""
        return useful_gpus(job_type.batch_size, self.tables().max_gpus, self._profiles.facts(job_type.model).batch)

    @property
    def repetition(self) -> Repetition | None:
        """Effect of scaling to the wanted load; None if the workload does not repeat recorded jobs."""
        if self._settings.source == "trace" and self._settings.load is not None:
            return Repetition(self.scaled[2], len(self.scaled[0]))
        if self._settings.draws:
            taken = sum(len(self.trace(window)) for window in self.windows)
            return Repetition(sum(map(len, self._traces.values())), taken)
        return None

    # Before a window ------------------------------------------------------------------------------------------------

    def past(self, window: Window) -> Past:
        """Return the jobs submitted before a window, at the windows' load; none if each file is a window."""
        mapping, step = self._settings.mapping, self._config.forecast.step
        usual, start = np.array(mapping.priority_shares), self.local_start(window)
        if not self.is_cut:
            return Past(np.zeros((0, len(usual))), usual, start)
        trace = self.scaled[0]
        if mapping.mode != "given":
            trace = trace.take(np.isfinite(trace.duration))
        return past_of(trace.submit_time, trace.priority, window.start, step, usual, start)

    def local_start(self, window: Window) -> float:
        """Return the local time at which a window begins [s since 1970-01-01]."""
        origin = self.trace(window.name).origin
        # Without local times, second 0 of the trace counts as midnight, as `rlpto forecast` does.
        unknown = MONDAY + self._settings.skip_days * DAY + window.start
        return unknown if origin is None else local_seconds(origin)


def window_seed(window: str, seed: int) -> int:
    """Return the seed of all randomness in a window, different for each window."""
    return int(np.random.SeedSequence([seed, zlib.crc32(window.encode())]).generate_state(1)[0])
