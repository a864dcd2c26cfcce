"""Where the sessions of a run are, what their job controllers are found by, and starting over."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import ExitStack, closing
from pathlib import Path

from rlpto.errors import CheckpointError
from rlpto.ray_cluster.controllers import all_controllers, end_controllers
from rlpto.ray_cluster.scheduler.session_lock import SessionLock

SESSIONS = "ray"
"""Folder of a run that holds a folder for each session: its database, checkpoints, tables and live curves."""
DATABASE = "state.sqlite"
"""The session database in the folder of a session."""


def session_name(run: Path, key: str) -> str:
    """What the controllers of a session are found by: the same for the same key in the same run folder, by whatever
    path it is reached, and no other. key: of the session in its run, letters and digits."""
    return f"{_run_name(run)}-{key}"


def remove_sessions(run: Path) -> None:
    """Throw away what the sessions of a run have left: their job controllers, workers included, and their files.

    This process is connected to the cluster. Raises ClusterError if a scheduler is at work on one of the sessions,
    CheckpointError if a file stays.
    """
    folder = run / SESSIONS
    with ExitStack() as locked:
        for session in sorted(path for path in folder.glob("*") if path.is_dir()):
            locked.enter_context(closing(SessionLock((session / DATABASE).resolve())))
        end_controllers(all_controllers(_run_name(run) + "-").values())
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise CheckpointError(f"{folder}: cannot be removed: {error.strerror or error}") from None


def _run_name(run: Path) -> str:
    return hashlib.sha256(str(run.resolve()).encode()).hexdigest()[:12]
