"""The proof: trains agents, evaluates them beside all other policies, and writes docs/results.md and its details.

Every training and every cell of an evaluation is kept in the folder of results (runs/results) as soon as
it is done, and is done anew only if its inputs have changed: interrupt the program when you like, and call
it again to go on. CPU time is counted over all calls.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import _common
import _results_cases as cases
import _results_numbers as numbers
import pandas as pd
from _results_plan import WORKLOADS, Study, StudyPlan, load_studies
from _results_runs import cpu_account
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rlpto.io.errors import ConfigError, RlptoError
from rlpto.io.files import write_text
from rlpto.io.reading import parsing

INTERRUPTED = 130
BEGIN, END = "<!-- begin: written by make results -->", "<!-- end: written by make results -->"
HEAD = "# Results\n\nAll figures below come from `make results`.\n"


def main() -> None:
    try:
        studies = load_studies()
        options = arguments(studies).parse_args()
        plan = StudyPlan(
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
            write_page(options.page, page_text(plan, studies, "results.md.j2"))
            write_page(options.details, page_text(plan, studies, "results_details.md.j2"))
            print(f"{options.page}, {options.details}: {name}", file=sys.stderr)
    except RlptoError as error:
        _common.refuse(f"{error}")
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it was", file=sys.stderr)
        sys.exit(INTERRUPTED)


def run_study(plan: StudyPlan, name: str, study: Study) -> None:
    """Run what a study still lacks, and keep what the page shows of it as JSON, and its tables as CSV."""
    found = numbers_of(name)(plan, study)
    for file, table in found.saved.items():
        write_text(plan.folder / "tables" / f"{file}.csv", table.to_csv(index=False), "a table")
    write_text(plan.folder / "numbers" / f"{name}.json", json.dumps(found.shown, indent=1, default=plain), "numbers")


def numbers_of(name: str) -> Callable[[StudyPlan, Study], numbers.Numbers]:
    """The function that computes the numbers of a study."""
    compute: Callable[[StudyPlan, Study], numbers.Numbers] = vars(numbers).get(name) or vars(cases)[name]
    return compute


def plain(value: pd.DataFrame | pd.Series[float]) -> object:
    """A frame as a list of rows, a number of NumPy as one of Python."""
    return value.to_dict("records") if isinstance(value, pd.DataFrame) else value.item()


def page_text(plan: StudyPlan, studies: Iterable[str], template: str) -> str:
    """What a template makes of the studies that have been run. Raises ConfigError if one cannot be read."""
    found = dict.fromkeys(studies)
    for name in found:
        path = plan.folder / "numbers" / f"{name}.json"
        if path.is_file():
            with parsing(path, "the numbers of a study: remove it", ConfigError):
                found[name] = json.loads(path.read_text(encoding="utf-8"))
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(template).render(found, cpu=cpu_account(plan)).rstrip() + "\n"


def write_page(path: Path, text: str) -> None:
    """Put the text between the marks of a page; a page that is not there is begun."""
    before, after = f"{HEAD}\n", "\n"
    if path.is_file():
        page = path.read_text(encoding="utf-8")
        if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
            raise ConfigError(f"{path}: expected the marks {BEGIN} and {END}, once each and in this order")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
    write_text(path, f"{before}{BEGIN}\n{text}{END}{after}", "the page of results")


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
    details = _common.ROOT / "docs" / "notes" / "results-details.md"
    parser.add_argument("--details", type=Path, default=details, help="page for what the verdicts do not need")
    return parser


def chosen(option: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Names of a list, in the order of `known`. Ends the program over one that is not known."""
    names = text.split(",")
    if foreign := [name for name in names if name not in known]:
        _common.refuse(f"{option} {text}: {foreign[0]!r} is none of {', '.join(known)}")
    return tuple(name for name in known if name in names)


if __name__ == "__main__":
    main()
