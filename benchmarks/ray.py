"""Real jobs on a local Ray cluster with logical GPUs: whether they are exact, how long they pause, what they cost."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import _common

from rlpto.ray_cluster.nodes.environment import ray_environment

FOLDER = Path(__file__).resolve().parent
PARTS = sorted(path.stem.removeprefix("_ray_") for path in FOLDER.glob("_ray_*.py") if path.stem != "_ray_job")
WORKER_PROGRAM = "RLPTO_WORKER_PROGRAM"
"""Workers are forked, unless this says otherwise: starts that share two cores with training would dominate figures."""
USUAL = ("equivalence", "pause", "overhead", "recovery")


def main() -> None:
    parser = _common.parser(__doc__ or "")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; without any: {', '.join(USUAL)}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=30.0, help="chaos: how long faults go on")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        _common.refuse(f"there is no part {unknown[0]!r}: expected {', '.join(PARTS)}")
    step_aside()
    os.environ.setdefault(WORKER_PROGRAM, str(FOLDER.parent / "tests" / "ray_cluster" / "fork_server.py"))
    checks: list[_common.Check] = []
    facts: dict[str, object] = {}
    with ray_environment():  # some of it counts only from before the import on
        for part in options.parts or USUAL:
            amount = options.minutes if part == "chaos" else options.repeats
            found, said = importlib.import_module(f"_ray_{part}").run(amount)
            checks += found
            facts |= said
    _common.finish(checks, options.json, **facts)


def step_aside() -> None:
    """Let `import ray` find the package and not this program, here and in Ray's workers, which get our search path."""
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != FOLDER] + [str(FOLDER)]
    # Ray puts the folder of the program that was started at the front of its workers' search path.
    sys.argv[0] = str(FOLDER.parent / "benchmarks-of-ray")


if __name__ == "__main__":
    main()
