"""What processes of Ray do while nobody uses them yet: they get warm.

If nobody has put a process to use a second after its start, a thread of it imports what workers need (it may have been
forked from one that has, see `rlpto.ray_cluster.forkserver`) and trains some steps of nothing. Not at a low priority:
who needs it meanwhile has to wait for the rest. While it imports Python does not look for garbage: it would do so again
and again among all that is imported, which takes a fifth of the time and finds none.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from importlib import import_module
from pathlib import Path

from rlpto.ray_cluster.forkserver import UNUSED, uses_gpus
from rlpto.ray_cluster.processes import IDLE

WARMING = "rlpto-warming"
"""Name of the thread that warms a process up, from its start to its end."""
IDLE_SECONDS = 1.0
"""A process that has been idle for so long is a spare."""
USED_SECONDS = 10.0
"""By then a process that was used before it was warm has imported what it needs."""
REHEARSING = threading.Lock()
"""Held while a process trains nothing. There is one process group of torch in a process: a worker that starts in the
middle of it has to wait for the end."""


def asked_for() -> bool:
    """True in processes of Ray that were told to import `rlpto.ray_cluster.preload`."""
    return any("rlpto.ray_cluster.preload" in argument for argument in sys.argv)


def begin() -> None:
    """Have this process get warm, if it is one of Ray's."""
    if not asked_for() or sys.platform != "linux":
        return
    forked = "torch" in sys.modules
    if not forked:
        gc.disable()
    Path("/proc/self/comm").write_text(UNUSED + os.environ.get("RAY_JOB_ID", ""))
    threading.Thread(target=wait_and_warm_up, args=(forked,), daemon=True).start()


def title() -> str:
    """Command line of this process, where Ray writes what it does."""
    try:
        return Path("/proc/self/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def wait_and_warm_up(forked: bool) -> None:
    """Warm this process up, unless somebody uses it soon. forked: all is imported."""
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(WARMING)
    try:
        time.sleep(IDLE_SECONDS)
        if not warm_up(forked) and not forked:
            time.sleep(USED_SECONDS)
    finally:
        look_for_garbage()


def look_for_garbage() -> None:
    """From now on, and not among what there is already: it stays."""
    gc.freeze()
    gc.enable()


def warm_up(forked: bool) -> bool:
    """Import and do what is slow the first time; False if somebody uses the process already. Where torch uses GPUs
    nothing is trained: they must not be touched before Ray has told the process which is its own."""
    if IDLE not in title() or ("torch" in sys.modules and not forked):
        return False  # somebody has started here, or is about to
    for module in ("torch._dynamo", "rlpto.ray_cluster.runner"):
        import_module(module)
    from rlpto.ray_cluster.rehearsal import rehearse

    if not uses_gpus():
        with REHEARSING:
            if IDLE in title():
                rehearse()
    return True
