"""How long the command line takes to import and to print its help."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import _common

LIMIT = 1.0


def seconds(command: list[str], repeats: int) -> float:
    """Median wall-clock seconds of a command after one run that warms the file cache."""
    taken = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("--repeats", type=int, default=7)
    options = arguments.parse_args()
    imports = seconds([sys.executable, "-c", "import rlpto.cli.main"], options.repeats)
    shown = seconds([str(Path(sys.executable).with_name("rlpto")), "--help"], options.repeats)
    checks = [
        _common.Check("import rlpto.cli.main", imports, "s", LIMIT, False),
        _common.Check("rlpto --help", shown, "s", LIMIT, False),
    ]
    _common.finish(checks, options.json)


if __name__ == "__main__":
    main()
