"""What processes of Ray do while nobody uses them yet: they get warm (`RAY_preload_python_modules` names this module).

Importing it in a process of Ray on Linux starts a thread. If nobody has put the process to use a second later, it
imports what workers need and trains some steps of nothing. Not at a low priority: who needs it meanwhile has to wait
for the rest.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from rlpto.ray_cluster.processes import IDLE

UNUSED = "rlpto-unused"
"""Name of the main thread of a process until it serves somebody: then Ray gives it another."""
WARMING = "rlpto-warming"
"""Name of the thread that warms a process up, from its start to its end."""
IDLE_SECONDS = 1.0
"""A process that has been idle for so long is a spare."""
REHEARSING = threading.Lock()
"""Held while a process trains nothing. There is one process group of torch in a process: a worker that starts in the
middle of it has to wait for the end."""


def asked_for() -> bool:
    """True in processes of Ray that were told to import this module."""
    return any(__name__ in argument for argument in sys.argv)


def title() -> str:
    """Command line of this process, where Ray writes what it does."""
    try:
        return Path("/proc/self/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def wait_and_warm_up() -> None:
    """Warm this process up, unless somebody uses it soon."""
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(WARMING)
    time.sleep(IDLE_SECONDS)
    warm_up()


def warm_up() -> None:
    """Import and do what is slow the first time. Where torch was built for CUDA nothing is trained: CUDA must not be
    touched before Ray has told the process which GPU is its own."""
    if "torch" in sys.modules or IDLE not in title():
        return  # somebody has started here, or is about to
    import torch
    import torch._dynamo

    from rlpto.ray_cluster import runner  # noqa: F401
    from rlpto.ray_cluster.rehearsal import rehearse

    if torch.version.cuda is None:
        with REHEARSING:
            if IDLE in title():
                rehearse()


if asked_for() and sys.platform == "linux":
    Path("/proc/self/comm").write_text(UNUSED)
    threading.Thread(target=wait_and_warm_up, daemon=True).start()
