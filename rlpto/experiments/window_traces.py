"""The windows of a configuration's workload, and the jobs recorded in each."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rlpto.arrivals.online import Past, past_of
from rlpto.core.cluster import ClusterShape
from rlpto.core.jobs import Job
from rlpto.experiments.config import Config
from rlpto.forecasting.series import MONDAY, local_seconds
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import ConfigError, TraceError
from rlpto.workloads.calibration import load_calibration
from rlpto.workloads.files import KEYS, files_by_split, read_any, stem
from rlpto.workloads.frozen import read_jobs
from rlpto.workloads.listed import LISTED_WINDOW, listed_trace, mix
from rlpto.workloads.load import draw_trace, offered_load, scale_load
from rlpto.workloads.synthetic import generate
from rlpto.workloads.trace import Trace
from rlpto.workloads.windows import Window, select, split_windows

HOUR, DAY = 3600.0, 86_400.0


@dataclass(frozen=True)
class WindowTrace:
    """A window and its recorded jobs, with times from the window's start. `make` is called when the jobs are first
    needed. drawn: whether the jobs are drawn from a file; such a window is never empty."""

    window: Window
    make: Callable[[], Trace]
    drawn: bool = False

    @cached_property
    def trace(self) -> Trace:
        """The jobs."""
        return self.make()


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


class WindowTraces:
    """The windows and traces of a workload. Traces are read when first needed.

    shape: shape of the cluster, for whose GPUs traces are scaled to the wanted load. listed: returns the jobs listed
    in the configuration. work: returns the [J] GPU-seconds that the jobs of a trace request.
    """

    def __init__(
        self,
        config: Config,
        shape: ClusterShape,
        listed: Callable[[], Sequence[Job]],
        work: Callable[[Trace], FloatArray],
    ) -> None:
        self._config, self._shape, self._listed, self._work = config, shape, listed, work

    @cached_property
    def files(self) -> dict[str, tuple[Path, ...]]:
        """Trace files by split, from `files_by_split`. A trace that is cut into windows counts as test."""
        workload = self._config.workload
        return files_by_split({split: getattr(workload, key) for split, key in KEYS.items()}, workload.draws > 0)

    @cached_property
    def by_name(self) -> dict[str, WindowTrace]:
        """All windows in which jobs were submitted, by name, in order of time.

        Raises TraceError or ConfigError if there is no trace, or it cannot be cut into the configured windows.
        """
        source = self._config.workload.source
        if source == "files":
            found = self._file_windows()
        elif source == "jobs":
            trace = listed_trace(self._listed())
            found = [WindowTrace(Window(LISTED_WINDOW, "test", 0.0, float(trace.submit_time[-1])), lambda: trace)]
        elif source == "frozen":
            found = [
                WindowTrace(Window(name, "test", 0.0, jobs[-1].submit_time), partial(listed_trace, jobs))
                for name, jobs in self.frozen.items()
            ]
        else:
            trace, span, _ = self._scaled
            found = [
                WindowTrace(window, partial(trace.slice, window.start, window.end))
                for windows in split_windows(span, self._config.workload.windows).values()
                for window in windows
            ]
        windows = {cut.window.name: cut for cut in found if cut.drawn or len(cut.trace)}
        if not windows:
            raise TraceError(f"{self.description}: no jobs in any window")
        return windows

    @cached_property
    def frozen(self) -> dict[str, list[Job]]:
        """Jobs by window of a workload with source frozen. Raises ConfigError or TraceError."""
        files = self.files["test"]
        if len(files) != 1:
            raise ConfigError(f"workload.path: source frozen expects one file, got {len(files)}")
        return {window: sorted(jobs, key=lambda job: job.submit_time) for window, jobs in read_jobs(files[0]).items()}

    def names(self, split: str | None = None, required: bool = True) -> list[str]:
        """Return the names of a split's windows, at most `workload.windows.limit`. split default: the evaluation's.

        Raises ConfigError if there are none and `required` is True.
        """
        split = self._config.evaluation.split if split is None else split
        windows = [cut.window for cut in self.by_name.values() if cut.window.split == split]
        if required and not windows:
            have = sorted({cut.window.split for cut in self.by_name.values()})
            raise ConfigError(
                f"{self.description}: no {split} windows with jobs, only {' and '.join(have)}; "
                "expected another evaluation.split, or other workload.windows"
            )
        wanted = self._config.workload.windows
        chosen = windows if wanted.limit is None else select(windows, wanted.limit, wanted.seed)
        return [window.name for window in chosen]

    @cached_property
    def by_file(self) -> dict[Path, Trace]:
        """Traces of all files, without jobs that are too large if the settings skip such jobs."""
        paths = [path for files in self.files.values() for path in files]
        return {path: self._fitted(read_any(path, self._config.workload.format)) for path in dict.fromkeys(paths)}

    def _file_windows(self) -> list[WindowTrace]:
        """Each file as one window, or windows drawn from it: `NAME-00`, `NAME-01`, ..., numbered across splits."""
        draws = self._config.workload.draws
        drawn: Counter[str] = Counter()
        found = []
        for path, split in ((path, split) for split, files in self.files.items() for path in files):
            if draws:
                found += [self._drawn(path, split, drawn[stem(path)] + number) for number in range(draws)]
                drawn[stem(path)] += draws
            else:
                trace = self.by_file[path]
                end = float(trace.submit_time[-1]) if len(trace) else 0.0
                found.append(WindowTrace(Window(stem(path), split, 0.0, end), partial(self.by_file.__getitem__, path)))
        return found

    def _drawn(self, path: Path, split: str, number: int) -> WindowTrace:
        """Return a window of jobs drawn from a file, at the wanted load. The window's name and the config's seed
        determine the draw."""
        workload = self._config.workload
        trace, span = self.by_file[path], workload.windows.hours * HOUR
        target = None if workload.load is None else workload.load * self._shape.capacity * span
        name = f"{stem(path)}-{number:02d}"
        seed = (self._config.seed, zlib.crc32(name.encode()))
        window = Window(name, split, 0.0, span)
        return WindowTrace(window, lambda: draw_trace(trace, self._work(trace), target, span, seed), drawn=True)

    @property
    def repetition(self) -> Repetition | None:
        """Effect of scaling to the wanted load; None if the workload does not repeat recorded jobs."""
        workload = self._config.workload
        if workload.source == "trace" and workload.load is not None:
            trace, _, recorded = self._scaled
            return Repetition(recorded, len(trace))
        if workload.source == "files" and workload.draws:
            taken = sum(len(cut.trace) for cut in self.by_name.values())
            return Repetition(sum(map(len, self.by_file.values())), taken)
        return None

    @cached_property
    def _scaled(self) -> tuple[Trace, float, int]:
        """The trace that is cut into windows, at the wanted load; the seconds it covers; and its number of jobs
        before scaling to the load."""
        workload = self._config.workload
        if workload.source == "synthetic":
            trace, span = self._synthetic(), workload.days * DAY
        else:
            files = self.files["test"]
            if len(files) != 1:
                raise ConfigError(f"workload.path: source trace expects one file, got {len(files)}")
            trace = read_any(files[0], workload.format)
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

    def past(self, window: Window) -> Past:
        """Return the jobs submitted before a window, at the windows' load; none if each file is a window."""
        mapping, step = self._config.workload.mapping, self._config.forecast.step
        usual, start = np.array(mapping.priority_shares), self.local_start(window)
        if self._config.workload.source in ("files", "jobs", "frozen"):
            return Past(np.zeros((0, len(usual))), usual, start)
        trace, _, _ = self._scaled
        if mapping.mode != "given":
            trace = trace.take(np.isfinite(trace.duration))
        return past_of(trace.submit_time, trace.priority, window.start, step, usual, start)

    def local_start(self, window: Window) -> float:
        """Return the local time at which a window begins [s since 1970-01-01]."""
        origin = self.by_name[window.name].trace.origin
        # Without local times, second 0 of the trace counts as midnight, as `rlpto forecast` does.
        unknown = MONDAY + self._config.workload.skip_days * DAY + window.start
        return unknown if origin is None else local_seconds(origin)

    def day_before(self, window: Window, factor: float = 1.0) -> tuple[FloatArray, IntArray]:
        """Return the jobs submitted in the day before a window: seconds before the window's start, and GPUs. There are
        none if each file is a window. factor: scale of all submit times."""
        if self._config.workload.source in ("files", "jobs", "frozen") or window.start == 0:
            return np.zeros(0), np.zeros(0, dtype=np.int64)
        trace = self._scaled[0]
        first, last = np.searchsorted(trace.submit_time, (window.start - DAY / factor, window.start))
        return (window.start - trace.submit_time[first:last]) * factor, trace.gpus[first:last]

    def learnt_demand(self) -> tuple[FloatArray, IntArray, float, float]:
        """Return the jobs of the trace before its first validation or test window: submit times [s], and GPUs; then the
        start of that window [s], and the local time of second 0. Raises ConfigError if each file is a window."""
        later = [cut.window.start for cut in self.by_name.values() if cut.window.split != "train"]
        first = next(iter(self.by_name.values())).window
        if self._config.workload.source in ("files", "jobs", "frozen") or not min(later, default=first.end):
            raise ConfigError(
                f"{self.description}: no demand before the test windows to fit a forecast on; expected "
                "forecast.demand, a file of `rlpto forecast fit --demand`"
            )
        trace, span, _ = self._scaled
        end = min(later, default=span)
        upto = int(np.searchsorted(trace.submit_time, end))
        return trace.submit_time[:upto], trace.gpus[:upto], end, self.local_start(first) - first.start

    def _synthetic(self) -> Trace:
        """Generate a trace with about the wanted load by making whole submissions more or less frequent."""
        workload, seed = self._config.workload, self._config.seed
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

    def _mixed(self, trace: Trace) -> Trace:
        """Return the trace; with `workload.mixture`, its submit times with jobs of these classes."""
        classes = self._config.workload.mixture
        return mix(trace, classes, self._config.seed) if classes else trace

    def _fitted(self, trace: Trace) -> Trace:
        """Return the trace without jobs that are too large for the cluster, if the settings skip such jobs."""
        if self._config.workload.mapping.oversized != "skip":
            return trace
        return trace.take(trace.gpus <= trace.allowed_types(self._shape.kind_gpus)[1])

    @property
    def description(self) -> str:
        """Description of the workload for messages."""
        workload = self._config.workload
        if workload.source == "synthetic":
            return f"synthetic workload {workload.calibration}"
        if workload.source == "jobs":
            return "workload.jobs"
        return ", ".join(str(path) for path in workload.path)
