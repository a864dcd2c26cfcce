"""The studies behind the pages of docs/: runs rows of studies.yaml, and writes the measured parts of the pages.

    python benchmarks/study.py [NAME ...] [--fresh] [--set KEY=VALUE] [--workers ADDRESS]

Measurements are kept in runs/studies/NAME.json until the files of RLPTO, the settings or the path of the real data
change. Cells and trainings are kept too: an interrupted call continues from there. Exits 1 if a figure that a page
claims is not reached.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import _common
from _common import Check
from _studies import INTERRUPTED, Plan, Row
from pydantic import Field, TypeAdapter, ValidationError

from rlpto.cli.common import chosen_workers
from rlpto.evaluation.runner import ONE_BY_ONE
from rlpto.io.errors import ConfigError, RlptoError
from rlpto.io.files import write_text
from rlpto.io.markdown import markdown_table
from rlpto.io.reading import parsing
from rlpto.io.settings import Settings
from rlpto.io.settings_text import first_problem
from rlpto.io.sources import FILES
from rlpto.io.workers import Workers
from rlpto.io.yaml_file import parse_value, read_yaml

HERE, PAGES = Path(__file__).parent, _common.ROOT / "docs"
STUDIES = HERE / "studies.yaml"
CONTEXT = ("folder", "cells", "data", "workers")
"""Fields of a plan that are not settings of a study."""
SETTINGS = tuple(key for key in Plan.model_fields if key not in CONTEXT)


class Claim(Settings):
    """A page's claim about a figure, or about all figures whose names match `figure` (* matches anything)."""

    figure: str
    unit: str = ""
    least: float | None = None
    most: float | None = None
    missed: bool = False


class Study(Settings):
    """One row of studies.yaml, which explains the keys."""

    tables: dict[str, str] = Field(default_factory=dict)
    needs: tuple[str, ...] = ()
    page: str = ""
    claims: tuple[Claim, ...] = ()
    listed: bool = True
    takes: str = ""
    settings: dict[str, Any] = Field(default_factory=dict)


def main() -> None:
    studies = load_studies()
    options = arguments(studies)
    checks: list[Check] = []
    try:
        with chosen_workers(options.workers, options.jobs) as workers:
            for name in _common.chosen("study", options.names, tuple(studies)) or studies:
                study = studies[name]
                try:
                    for needed in study.needs:
                        _common.real(needed)
                except _common.NoDataError as lack:
                    print(f"{name} skipped: {lack}")
                    continue
                plan = plan_of(study, options.set, options.folder.resolve(), workers)
                found = measured(name, study, plan, fresh=options.fresh)
                checks += [check for check, missed in claims_of(study, found) if not missed]
                write_block(options.pages / study.page, name, block(name, study, found))
    except RlptoError as error:
        _common.refuse(f"{error}")
    except KeyboardInterrupt:
        print("interrupted; the same command continues where it was", file=sys.stderr)
        sys.exit(INTERRUPTED)
    _common.finish(checks)


def load_studies(path: Path = STUDIES) -> dict[str, Study]:
    """The studies by name. Raises ConfigError, naming file and line, if one is wrong."""
    file = read_yaml(path)
    try:
        return TypeAdapter(dict[str, Study]).validate_python(file.data)
    except ValidationError as error:
        location, said = first_problem(error, None)
        raise ConfigError(f"{file.place(location)}: {said}") from None


def arguments(studies: Mapping[str, Study]) -> Any:
    """The options of a call."""
    parser = _common.parser(__doc__, "name", studies)
    parser.add_argument("--fresh", action="store_true", help="measure again what is kept; cells stay")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help=f"settings of a study: {', '.join(SETTINGS)}"
    )
    parser.add_argument("--jobs", "-j", type=_common.at_least(1), default=1, help="processes that run cells together")
    parser.add_argument("--workers", metavar="ADDRESS", help="compute on this Ray cluster: auto, [ray://]HOST:PORT")
    parser.add_argument("--folder", type=Path, default=_common.ROOT / "runs" / "studies", help="where work is kept")
    parser.add_argument("--pages", type=Path, default=PAGES, help="folder of the pages to write into")
    return parser.parse_args()


def plan_of(study: Study, settings: Sequence[str], folder: Path, workers: Workers = ONE_BY_ONE) -> Plan:
    """The size of a study, from its row's settings and the given ones. Raises ConfigError for invalid settings.

    Trainings are kept when sources change; cells are not.
    """
    data, cells = _common.data_folder(), folder / f"cells-{sources_digest()[:8]}"
    given: dict[str, Any] = {}
    for setting in settings:
        key, _, text = setting.partition("=")
        if key not in SETTINGS:
            raise ConfigError(f"--set {key}: expected one of {', '.join(SETTINGS)}")
        given[key] = parse_value(text, f"--set {setting}")
    context = {"folder": folder, "cells": cells, "data": data if data.is_dir() else None, "workers": workers}
    try:
        return Plan.model_validate(study.settings | given | context)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"--set {first['loc'][0]}: {first['msg']}") from None


def functions_of(name: str, study: Study) -> dict[str, Callable[..., Any]]:
    """The functions that measure a study, one for each of its tables, by title."""
    found = {}
    for title, given in study.tables.items():
        module, _, function = given.rpartition(".")
        found[title] = getattr(importlib.import_module(module or f"_study_{name}"), function)
    return found


@cache
def sources_digest() -> str:
    """Digest of the files of RLPTO and of the programs here, on which every measurement may depend."""
    digest = hashlib.sha256(FILES.encode())
    for path in sorted(HERE.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def measure(name: str, study: Study, plan: Plan) -> dict[str, dict[str, Any]]:
    """Figures and limits of all parts of a study, and their rows by title."""
    found: dict[str, dict[str, Any]] = {"figures": {}, "limits": {}, "tables": {}}
    for title, function in functions_of(name, study).items():
        _common.progress(f"{name}: {title.format(plan=plan)}")
        part = function(plan)
        found["figures"] |= part.figures
        found["limits"] |= part.limits
        if part.rows:
            found["tables"][title.format(plan=plan)] = part.rows
    return found


def measured(name: str, study: Study, plan: Plan, *, fresh: bool) -> dict[str, Any]:
    """Results of a study as plain data, with its CPU minutes; read back if sources, settings and the path of the real
    data are unchanged."""
    path, settings = plan.folder / f"{name}.json", plan.model_dump_json(include={*SETTINGS, "data"})
    digest = hashlib.sha256(f"{sources_digest()} {settings}".encode()).hexdigest()
    if not fresh and path.is_file():
        with parsing(path, "the results of a study: remove it", ConfigError):
            kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if kept["digest"] == digest:
            return kept
    _common.progress(f"measuring {name}")
    began = sum(os.times()[:4])  # of finished child processes too, such as trainings
    found = measure(name, study, plan) | {"digest": digest, "cpu_minutes": (sum(os.times()[:4]) - began) / 60}
    text = json.dumps(found, default=lambda number: number.item(), indent=1)  # numbers of NumPy
    write_text(path, text, "a measurement")
    return dict(json.loads(text))


def claims_of(study: Study, found: Mapping[str, Any]) -> list[tuple[Check, bool]]:
    """The claims of a page, each with whether it is known to be missed; misses come first.

    Raises ConfigError for a figure without a claim.
    """
    checks = []
    for figure, value in found["figures"].items():
        claims = [claim for claim in study.claims if fnmatchcase(figure, claim.figure)]
        if not claims:
            raise ConfigError(f"studies.yaml: no claim is about the figure {figure!r}")
        for claim in claims:
            bounds = {"least": claim.least, "most": claim.most}
            if figure in found["limits"]:
                bounds = {"least": None, "most": found["limits"][figure]}
            for key, limit in bounds.items():
                if limit is not None:
                    label = f"{figure}, at {key}" if None not in bounds.values() else figure
                    checks.append((Check(label, value, claim.unit, limit, key == "least"), claim.missed))
    return sorted(checks, key=lambda pair: not pair[1])


def block(name: str, study: Study, found: Mapping[str, Any]) -> str:
    """The measured part of a page: the claims, then the tables."""
    takes = study.takes or f"{found['cpu_minutes']:.1f} CPU-minutes"
    lines = [f"`python benchmarks/study.py {name}` wrote what follows ({takes})."]
    if study.listed and (claims := claims_of(study, found)):
        lines += ["", *table([claim_row(check, missed) for check, missed in claims])]
    for title, rows in found["tables"].items():
        lines += ["", *([f"{title}:", ""] if title else []), *table(rows)]
    return "\n".join(lines)


def claim_row(check: Check, missed: bool) -> Row:
    """A row with the measured value, the claim, and whether it holds; a known miss is no failure."""
    return {
        "behaviour": check.name,
        "measured": f"{figure_text(check.value)} {check.unit}".strip(),
        "claimed": f"at {'least' if check.least else 'most'} {figure_text(check.limit)}",
        "": "yes" if check.passed else "**missed**" if missed else "**no**",
    }


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of a Markdown table."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return markdown_table([{column: figure_text(row.get(column, "")) for column in columns} for row in rows])


def figure_text(value: object) -> str:
    """A number with four significant digits; anything else unchanged."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or not math.isfinite(value):
        return f"{value}"
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def write_block(page: Path, mark: str, text: str) -> None:
    """Put the text between the marks of a page; a missing page is created. Raises ConfigError if marks are missing."""
    begin, end = f"<!-- begin: {mark} -->", f"<!-- end: {mark} -->"
    before = page.read_text(encoding="utf-8") if page.exists() else f"# Results\n\n{begin}\n{end}\n"
    if before.count(begin) != 1 or before.count(end) != 1 or before.index(begin) > before.index(end):
        raise ConfigError(f"{page}: expected the marks {begin} and {end}, once each and in this order")
    after = f"{before.partition(begin)[0]}{begin}\n{text}\n{end}{before.partition(end)[2]}"
    if not page.exists() or after != page.read_text(encoding="utf-8"):
        write_text(page, after, "a page")


if __name__ == "__main__":
    main()
