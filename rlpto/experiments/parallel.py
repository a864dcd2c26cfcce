"""Parallel trainings, each in a separate Ray task; without Ray, or on one core, one after the other."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from rlpto.io.cores import cores
from rlpto.io.errors import RlptoError

STOP_TIMEOUT_S = 60.0
"""Longest time that trainings may take to stop cleanly after Ctrl-C."""


def workers(wanted: int | None) -> int:
    """Trainings that run side by side: as many as wanted, else one for each core; one without Ray."""
    if find_spec("ray") is None:
        return 1
    return wanted or cores()


def side_by_side(runs: Sequence[Path], at_once: int, on_finished: Callable[[str | None], None]) -> None:
    """Train, or continue, in every folder. on_finished: called with the summary of each; None: it has failed.

    Raises the first RlptoError of a training, after all others have ended; KeyboardInterrupt after Ctrl-C, once the
    trainings have left checkpoints.
    """
    failed: list[str] = []
    with local_ray(at_once):
        import ray

        remote = ray.remote(num_cpus=1, max_retries=0)(train_member)
        pending = {remote.remote(str(run.resolve())): run for run in runs}
        try:
            while pending:
                done, _ = ray.wait(list(pending), timeout=1.0)
                for reference in done:
                    run, (summed, error) = pending.pop(reference), ray.get(reference)
                    failed += [error] if error else []
                    on_finished(summed and summed.replace(str(run.resolve()), str(run)))
        except KeyboardInterrupt:
            print("rlpto: stopping after these updates", file=sys.stderr)
            for reference in pending:
                ray.cancel(reference, force=False)
            ray.wait(list(pending), num_returns=len(pending), timeout=STOP_TIMEOUT_S)
            raise
    if failed:
        raise RlptoError(failed[0])


@contextmanager
def local_ray(cpus: int) -> Iterator[None]:
    """A Ray instance for the time of a block, private to this process."""
    from rlpto.ray_cluster.nodes.environment import set_variables
    from rlpto.ray_cluster.nodes.local import LocalCluster

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    try:
        with LocalCluster([], cpus):
            yield
    finally:
        set_variables({"PYTHONPATH": before})


def train_member(folder: str) -> tuple[str | None, str | None]:
    """One training in a separate process; continues from a checkpoint if there is one. Returns its summary, or its
    error."""
    from rlpto.experiments.training_runs import summary, train_folder

    run = Path(folder)
    try:
        return summary(run, train_folder(run)), None
    except RlptoError as error:
        return None, str(error)
