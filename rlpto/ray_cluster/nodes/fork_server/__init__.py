"""Processes of the nodes that we start, forked from one that has imported what jobs need (`server.py` says how).

It rests on how Ray starts processes, so it is used with the version of Ray that it was tested with alone, and never on
nodes that somebody else has started. `docs/notes/fork-server.md` says what it gains, and what Ray's own means would.
"""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

SETTING = "RLPTO_FORK_SERVER"
"""Environment variable: 0 has every process start by itself, as Ray would have it."""
TESTED_RAY = "2.60."
"""What versions of Ray begin with that this was tested with."""


def program() -> str | None:
    """Path of the program that a node is to run for every process it needs; None: Ray's own."""
    used = os.environ.get(SETTING, "1") != "0" and metadata.version("ray").startswith(TESTED_RAY)
    return str(Path(__file__).with_name("server.py").resolve()) if used else None
