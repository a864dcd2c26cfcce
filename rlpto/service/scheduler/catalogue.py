"""The admin's catalogue as the scheduler uses it: training programs, their expected speed, and whether workers can
import them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlpto.core.cluster import ClusterShape
from rlpto.core.job_store import JobStore
from rlpto.core.jobs import PRIORITY_CLASSES, Job
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import Experiment
from rlpto.io.errors import JobError, RlptoError
from rlpto.performance.compile import compile_tables
from rlpto.performance.metrics import METRIC_NAMES, METRICS
from rlpto.performance.solo import predict_training
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.settings import ProgramSettings, program_spec
from rlpto.store.database import Store
from rlpto.store.jobs import JobRow
from rlpto.store.programs import ProgramRow, all_programs, get_program, note_check
from rlpto.store.rows import put_all
from rlpto.store.scripts import get_script
from rlpto.store.status import ANY_METRIC, PreviewRow

PREVIEW_GPUS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of GPUs in previews, up to the cluster's size."""
MOST_PROFILE_EPOCHS = 500
"""Epochs of a program in tables of speed and accuracy; later epochs count as the last one."""
SESSION = "service"
"""Name of the session on the Ray cluster, before the hash of its folder."""
FAILED_KEPT_S = 60.0
"""Time for which a failed check is not repeated. Packages that pip could not install may be available later."""


class ProgramChecks:
    """Finds out, without blocking the scheduler, whether workers can import a class.

    check: returns why a class cannot be imported with its pip packages, empty if it can; it may take long. executor:
    runs the checks. timer: monotonic clock [s].
    """

    def __init__(
        self,
        check: Callable[[str, Sequence[str]], str],
        executor: Executor,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._check, self._executor, self._timer = check, executor, timer
        self._answers: dict[tuple[str, ...], Future[str]] = {}
        self._failed_at: dict[tuple[str, ...], float] = {}

    def problem(self, training: str, pip: Sequence[str]) -> str | None:
        """Return why a class cannot be imported, empty if it can, or None while this is being checked."""
        key = (training, *pip)
        if self._timer() > self._failed_at.get(key, math.inf) + FAILED_KEPT_S:
            self.forget(training, pip)
        if key not in self._answers:
            self._answers[key] = self._executor.submit(self._check, training, pip)
        answer = self._answers[key]
        if not answer.done():
            return None
        error = answer.exception()
        found = answer.result() if error is None else f"{type(error).__name__}: {error}"
        if found:
            self._failed_at.setdefault(key, self._timer())
        return found

    def forget(self, training: str, pip: Sequence[str]) -> None:
        """Forget the result of a check; the next call of `problem` repeats it."""
        self._answers.pop((training, *pip), None)
        self._failed_at.pop((training, *pip), None)


class Catalogue:
    """Programs by name, and the speed tables of all of them.

    config: the experiment. shape: the cluster when the service started; no job gets more GPUs than a job could hold
    then. folder: folder of jobs' files. session: session name of the controllers. programs: settings by name; the
    mapping changes in place.
    """

    def __init__(
        self, store: Store, config: Config, shape: ClusterShape, session: str, folder: Path, checks: ProgramChecks
    ) -> None:
        self._store, self._config, self._shape = store, config, shape
        self._session, self._folder, self._checks = session, folder, checks
        self._rows: dict[str, ProgramRow] = {}
        self.programs: dict[str, ProgramSettings] = {}
        self.most_gpus = max(shape.most_gpus, 1)
        self._read()
        self.tables = self._compiled()

    def changed(self) -> bool:
        """Take in changes by admins, and record results of checks. True if `tables` have changed."""
        before = dict(self.programs)
        self._read()
        for name, row in self._rows.items():
            if row.checked == "unchecked":
                problem = self._checks.problem(self.programs[name].training, self.programs[name].pip)
                if problem is not None:
                    note_check(self._store, row, problem)
        if self.programs == before:
            return False
        self.tables = self._compiled()
        return True

    def _read(self) -> None:
        """Read changed programs. Objects of unchanged ones stay the same, because estimates refer to them."""
        for row in all_programs(self._store):
            if row == self._rows.get(row.name):
                continue
            self._rows[row.name] = row
            program = ProgramSettings.model_validate(row.spec["program"])
            if program != self.programs.get(row.name):
                self.programs[row.name] = program
            if row.checked == "unchecked":
                self._checks.forget(program.training, program.pip)

    def problem(self, row: JobRow) -> str | None:
        """Return why a job cannot run, empty if it can, or None while its program is being checked."""
        if row.program not in self.programs:
            new = get_program(self._store, row.program) is not None  # added since the catalogue was last read
            return None if new else f"no program {row.program} in the catalogue"
        program = self.programs[row.program]
        if row.gpus > self.most_gpus:
            return f"it asks for {row.gpus} GPUs, and the cluster has {self.most_gpus} for one job"
        servers = program.servers if program.has_servers else 0
        if servers > self._shape.cpu_slots:
            return (
                f"it trains through {servers} parameter servers, and the nodes have {self._shape.cpu_slots} CPU slots"
            )
        problem = self._checks.problem(program.training, (*program.pip, *row.pip))
        return f"{program.training} cannot be used: {problem}" if problem else problem

    def job(self, row: JobRow, submit_time: float) -> Job:
        """Make the scheduler's view of a job. Raises RlptoError if its values are inconsistent."""
        program = self.programs[row.program]
        return Job(
            name=row.id,
            submit_time=submit_time,
            model=row.program,
            epochs=row.epochs,
            data_size=float(row.samples or program.samples),
            requested_gpus=row.gpus,
            min_gpus=row.min_gpus,
            max_gpus=min(row.max_gpus, self.most_gpus),
            priority=PRIORITY_CLASSES.index(row.priority),
            metric=row.metric or self._config.workload.metric,
            user=row.owner,
        )

    def check(self, job: Job) -> None:
        """Raise JobError for a job that fits on no GPU type here, or on none with its allowed GPUs."""
        JobStore.from_jobs([job], self.tables)

    def spec(self, row: JobRow) -> JobSpec:
        """Make the controller's specification of a job. Raises RlptoError if its values are inconsistent."""
        program = self.programs[row.program]
        seed = row.seq if row.seed is None else row.seed
        folder = (self._folder / row.id).absolute()
        made = program_spec(0, row.name, program, self._config.ray, self._session, self._folder, seed)
        return replace(
            made,
            id=row.id,
            folder=str(folder),
            pip=(*program.pip, *row.pip),
            options={**program.options, **row.options, **self._script(row, folder)},
            data_size=row.samples or program.samples,
            batch_size=row.batch_size or program.batch_size,
            epochs=row.epochs,
            logs=True,
        )

    def _script(self, row: JobRow, folder: Path) -> dict[str, Any]:
        """Options of a job in `folder` that trains a script. Raises JobError if the script is lost."""
        if row.script is None:
            return {}
        script = get_script(self._store, row.script)
        if script is None:
            raise JobError(f"its script {row.script[:12]} is not in the database")
        code = {"name": script.name, "source": script.source, "files": script.files, "folder": str(folder / "code")}
        return {**code, "arguments": list(row.arguments)}

    def _compiled(self) -> SpeedTables:
        """Compile tables of all programs by every metric; if there are no programs, of an arbitrary model."""
        profiles = self._experiment().profiles
        models = tuple(self.programs) or profiles.models[:1]
        types = [JobType(model, None, metric) for model in models for metric in METRICS]
        gpu_types, per_node = self._shape.node_sizes, self._shape.gpus_per_node
        return compile_tables(
            profiles, types, self.most_gpus, per_node, gpu_types=gpu_types, choose_batches=True, choose_servers=True
        )

    def _experiment(self) -> Experiment:
        """The experiment, with the catalogue's programs in place of its own."""
        known = {
            name: program.model_copy(update={"epochs": min(program.epochs, MOST_PROFILE_EPOCHS)})
            for name, program in self.programs.items()
        }
        ray = self._config.ray.model_copy(update={"programs": known})
        return Experiment(self._config.model_copy(update={"ray": ray}))

    def write_previews(self) -> None:
        """Write the predicted duration of trainings of each program, for the submission form.

        Programs with neither a profile nor a step time get no preview. If all metrics agree, they share one set of
        rows.
        """
        experiment, per_node = self._experiment(), self._shape.gpus_per_node
        counts = [gpus for gpus in PREVIEW_GPUS if gpus <= self.most_gpus]
        rows = dict[str, list[PreviewRow]]()
        for name, program in self.programs.items():
            known = name not in experiment.guessed_models or program.gives_speed
            try:
                found = predict_training(experiment.profiles, name, counts, METRIC_NAMES, per_node) if known else []
            except RlptoError:
                found = []
            sizes = len({one.gpus for one in found})
            if len({(one.gpus, one.hours) for one in found}) == sizes:
                found = [replace(one, metric=ANY_METRIC) for one in found[:sizes]]
            rows[name] = [PreviewRow(name, one.metric, one.gpus, one.hours, one.gpu_hours) for one in found]
        with self._store.transaction():  # not longer: it keeps other writers waiting
            for name in rows:
                put_all(self._store, PreviewRow, rows[name], "WHERE program = ?", (name,))
