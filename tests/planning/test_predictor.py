"""The process that looks ahead."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

OWNER = """
import time
from rlpto.planning.predictor import own_process

if __name__ == "__main__":
    pool = own_process()
    pool.submit(abs, -1).result()
    print(*pool._processes, flush=True)
    time.sleep(600)
"""
"""A stand-in for the scheduler: it looks ahead, says in which process, and waits to be killed."""


def test_it_ends_when_the_scheduler_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "owner.py"
    program.write_text(OWNER)
    owner = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    ahead = int(owner.stdout.readline())
    os.kill(ahead, 0)  # it is there
    owner.kill()
    owner.wait()
    owner.stdout.close()
    while alive(ahead):
        time.sleep(0.05)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
