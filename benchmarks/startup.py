"""How long the command line takes to import and to print its help."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import _common

TIMES = 5.0
"""What they may take, compared to a Python that imports parts of its standard library."""
STANDARD = [sys.executable, "-c", "import argparse, asyncio, email, http.client, json, logging, sqlite3, unittest"]
COMMANDS = {
    "import rlpto.cli.main": [sys.executable, "-c", "import rlpto.cli.main"],
    "rlpto --help": [str(Path(sys.executable).with_name("rlpto")), "--help"],
}


def seconds(command: list[str]) -> float:
    """Wall-clock seconds of a command."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("--repeats", type=int, default=7)
    options = arguments.parse_args()
    checks, facts = [], {}
    for name, command in COMMANDS.items():
        _common.progress(name)
        # The first of each warms the file cache.
        pairs = [(seconds(command), seconds(STANDARD)) for _ in range(options.repeats + 1)][1:]
        times = statistics.median(own / usual for own, usual in pairs)
        checks.append(_common.Check(name, times, "times a start of Python", TIMES, False))
        facts[f"{name}, seconds"] = round(statistics.median(own for own, _ in pairs), 2)
    _common.finish(checks, options.json, **facts)


if __name__ == "__main__":
    main()
