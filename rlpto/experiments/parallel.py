"""Trainings side by side: the seeds of a run, or the trials of a sweep. Imports torch.

On other hosts a training is a chain of tasks of about a minute. Each gets the last checkpoint and returns the files it
has written, which are kept in the training's folder on this machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rlpto.agents.checkpoint import Identity
from rlpto.agents.settings import LAST
from rlpto.agents.training_loop import TrainingResult
from rlpto.experiments.config import Config
from rlpto.experiments.inputs import Inputs
from rlpto.experiments.on_host import Stored
from rlpto.experiments.run_folder import read_run_config
from rlpto.experiments.training_runs import by_load, identity, train_folder, train_in
from rlpto.io.cores import cores
from rlpto.io.errors import RlptoError
from rlpto.io.files import file_there, whole_file
from rlpto.io.workers import LocalWorkers, Workers

STOP_TIMEOUT_S = 60.0
"""Longest time for trainings to stop cleanly after Ctrl-C [s]."""
PART_S = 60.0
"""Length of a task of a training on another host [s]: all that is lost if the host or this process dies."""

CPUS_EACH = 4
"""CPUs for each training from which the parts of its updates are computed side by side, rather than trainings."""


@contextmanager
def local_trainers(jobs: int | None, most: int) -> Iterator[Workers]:
    """Workers for trainings on this machine.

    jobs: number of processes. Default: one per core. Without Ray there is one. most: largest useful number.
    """
    at_once = min(jobs or cores(), most) if find_spec("ray") is not None else 1
    if at_once == 1:
        yield LocalWorkers()
        return
    from rlpto.experiments.ray_workers import RayWorkers
    from rlpto.ray_cluster.nodes.environment import set_variables
    from rlpto.ray_cluster.nodes.local import LocalCluster

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        with RayWorkers(LocalCluster([], at_once), STOP_TIMEOUT_S) as found:
            yield found
    finally:
        set_variables({"PYTHONPATH": before})


def one_by_one(config: Config, trainings: int, workers: Workers) -> bool:
    """Return whether trainings run one after the other in this process. On a cluster, windows of each training are then
    played on all CPUs, which is faster if there are `CPUS_EACH` for each training."""
    if workers.shares_files or config.agent.learns != "windows":
        return isinstance(workers, LocalWorkers)
    return trainings == 1 or workers.slots >= CPUS_EACH * trainings


class Part(NamedTuple):
    """A task of training number `number`. folder: its folder on the driver. seconds: its length. inputs: configuration
    and identity for another host; None if tasks see the folder. checkpoint: the last checkpoint for another host, empty
    if there is none yet."""

    number: int
    folder: Path
    seconds: float
    inputs: Stored[tuple[Inputs, Identity]] | None = None
    checkpoint: bytes = b""


class Ended(NamedTuple):
    """Result of a part. files: contents of the files written on another host, by path in the training's folder."""

    outcome: TrainingResult | RlptoError
    files: Mapping[str, bytes] = {}


def train_all(
    runs: Sequence[Path], workers: Workers, seconds: float = PART_S
) -> Iterator[tuple[Path, TrainingResult | RlptoError]]:
    """Train, or continue, in every folder. Yields a folder with its outcome, or its progress after each part.

    runs: a list may grow while outcomes are taken. seconds: length of parts on other hosts, which contain at least one
    update. Raises KeyboardInterrupt after Ctrl-C, once the trainings have left checkpoints.
    """
    parts = [_first(number, run, workers, seconds) for number, run in enumerate(runs)]
    begun = len(parts)
    for position, ended in workers.run(train_part, parts):
        part, outcome = parts[position], ended.outcome
        parts[position] = part._replace(checkpoint=b"")  # a training has many, which take memory
        run = runs[part.number]
        for name in sorted(ended.files, key=LAST.__eq__):  # last, since training continues from it
            with whole_file(run / name, "the training") as unfinished:
                unfinished.write_bytes(ended.files[name])
        if isinstance(outcome, RlptoError):
            outcome = type(outcome)(str(outcome).replace(str(part.folder), str(run)))
        elif not outcome.finished:
            parts.append(part._replace(checkpoint=ended.files[LAST]))
        yield run, outcome
        parts += [_first(number, runs[number], workers, seconds) for number in range(begun, len(runs))]
        begun = len(runs)


def _first(number: int, run: Path, workers: Workers, seconds: float) -> Part:
    """The next part of a training in a folder."""
    if workers.shares_files:
        return Part(number, run.resolve(), seconds)
    config, last = read_run_config(run), run / LAST
    inputs = Stored.of((Inputs.of(config), identity(config, by_load(config))))
    return Part(number, run.resolve(), seconds, inputs, last.read_bytes() if file_there(last) else b"")


def train_part(part: Part) -> Ended:
    """Train in this process: to the end in a folder that is there, else for `Part.seconds`.

    Raises KeyboardInterrupt after Ctrl-C if the folder is there.
    """
    try:
        if part.inputs is None:
            outcome = train_folder(part.folder)
            if not outcome.finished:
                raise KeyboardInterrupt
            return Ended(outcome)
        inputs, known = part.inputs.value
        with tempfile.TemporaryDirectory(prefix="rlpto-training-") as name:
            folder = Path(name)
            if part.checkpoint:
                (folder / LAST).write_bytes(part.checkpoint)
            try:
                ended: TrainingResult | RlptoError = train_in(folder, inputs.here, known, seconds=part.seconds)
            except RlptoError as error:
                original = str(error).replace(name, str(part.folder)).replace(str(inputs.folder), "")
                ended = type(error)(original)
            files = [path for path in folder.rglob("*") if path.is_file()]
            return Ended(ended, {str(path.relative_to(folder)): path.read_bytes() for path in files})
    except RlptoError as error:
        return Ended(error)
