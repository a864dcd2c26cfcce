"""The proof: trains agents, evaluates them beside all other policies, and writes docs/results.md.

Every training and every cell of an evaluation is kept in the folder of results (runs/results) as soon as
it is done, and is done anew only if its inputs have changed: interrupt the program when you like, and call
it again to go on. CPU time is counted over all calls.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import _common
import _results_cases
import _results_numbers
from _results_page import Section, load_sections, save_section, section_of, write_page
from _results_plan import WORKLOADS, Plan, Study, load_studies
from _results_runs import cpu_account

from rlpto.errors import RlptoError

INTERRUPTED = 130


def main() -> None:
    try:
        studies = load_studies()
        options = arguments(studies).parse_args()
        plan = Plan(
            folder=options.folder,
            workloads=chosen("--workloads", options.workloads, WORKLOADS),
            loads=tuple(float(load) for load in options.loads.split(",")),
            seeds=tuple(range(options.seeds)),
            windows=options.limit,
            draws=options.draws,
            steps=options.steps,
            jobs=options.jobs,
        )
        for name in chosen("--only", options.only, tuple(studies)):
            run_study(plan, name, studies[name])
            write_page(options.page, load_sections(plan.folder, tuple(studies)), cpu_account(plan))
            print(f"{options.page}: {name}", file=sys.stderr)
    except RlptoError as error:
        _common.refuse(f"{error}")
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it was", file=sys.stderr)
        sys.exit(INTERRUPTED)


def run_study(plan: Plan, name: str, study: Study) -> Section:
    """Run what a study still lacks, and keep its section and its tables."""
    module = _results_cases if hasattr(_results_cases, study.numbers) else _results_numbers
    numbers = getattr(module, study.numbers)(plan, study)
    about = {"seeds": len(plan.seeds), "home": plan.home, "busy": plan.busy, "contenders": study.contenders}
    section = section_of(name, study, numbers, about)
    save_section(plan.folder, section, numbers.saved)
    return section


def arguments(studies: Iterable[str]) -> argparse.ArgumentParser:
    """What can be chosen."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--only", metavar="A,B", default=",".join(studies), help=f"studies to run: {', '.join(studies)}"
    )
    parser.add_argument("--workloads", metavar="A,B", default=",".join(WORKLOADS), help="workloads of reward and jct")
    parser.add_argument("--loads", metavar="A,B", default=".5,.7,.9,1.1", help="loads to train and evaluate at")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of training")
    parser.add_argument("--limit", type=int, default=26, help="test windows of each workload and load at most")
    parser.add_argument(
        "--draws", type=int, default=5, help="draws of the jobs of each window, where rewards are compared"
    )
    parser.add_argument("--steps", type=int, help="environment steps of every training, instead of the config's")
    parser.add_argument("--jobs", "-j", type=int, default=1, help="processes that run cells side by side")
    parser.add_argument("--folder", type=Path, default=_common.ROOT / "runs" / "results", help="where work is kept")
    parser.add_argument("--page", type=Path, default=_common.ROOT / "docs" / "results.md", help="page to write into")
    return parser


def chosen(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Names of a list, in the order of `known`. Ends the program over one that is not known."""
    names = text.split(",")
    if foreign := [name for name in names if name not in known]:
        _common.refuse(f"{option} {text}: {foreign[0]!r} is none of {', '.join(known)}")
    return tuple(name for name in known if name in names)


if __name__ == "__main__":
    main()
