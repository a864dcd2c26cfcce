"""The studies behind the pages of docs/: runs rows of studies.yaml, and writes the measured parts of the pages.

    python benchmarks/study.py [NAME ...] [--fresh] [--no-page] [--set KEY=VALUE]

Measurements are kept in runs/studies/NAME.json until sources or settings change. Cells and trainings are kept too: an
interrupted call continues from there. Exits 1 if a figure that a page claims is not reached.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import _common
import yaml
from _common import Check
from _studies import Plan, Row, Study, load_studies
from pydantic import ValidationError

from rlpto.io.errors import ConfigError
from rlpto.io.files import write_text
from rlpto.io.markdown import markdown_table
from rlpto.io.reading import parsing

HERE, PAGES = Path(__file__).parent, _common.ROOT / "docs"
CONTEXT = ("folder", "cells", "data", "jobs")
"""Fields of a plan that are not settings of a study."""
INTERRUPTED = 130


def main() -> None:
    studies = load_studies()
    options = arguments(studies)
    checks: list[Check] = []
    try:
        for name in _common.chosen("study", options.names, tuple(studies)) or studies:
            study = studies[name]
            with _common.bad_input():
                plan = plan_of(study, options.set, options.folder, options.jobs)
                found = measured(name, study, plan, fresh=options.fresh)
                checks += [check for check, missed in claims_of(study, found) if not missed]
                text = block(name, study, found)
                if options.no_page:
                    print(text)
                else:
                    write_block(options.pages / study.page, name, text)
    except KeyboardInterrupt:
        print("interrupted; the same command continues where it was", file=sys.stderr)
        sys.exit(INTERRUPTED)
    _common.finish(checks)


def arguments(studies: Mapping[str, Study]) -> Any:
    """The options of a call."""
    parser = _common.parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"{', '.join(studies)}; without any: all")
    parser.add_argument("--fresh", action="store_true", help="measure again what is kept; cells stay")
    parser.add_argument("--no-page", action="store_true", help="print the measured part, leave docs/ as it is")
    settings = ", ".join(key for key in Plan.model_fields if key not in CONTEXT)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help=f"other settings of a study: {settings}"
    )
    parser.add_argument("--jobs", "-j", type=_common.positive, default=1, help="processes that run cells side by side")
    parser.add_argument("--folder", type=Path, default=_common.ROOT / "runs" / "studies", help="where work is kept")
    parser.add_argument("--pages", type=Path, default=PAGES, help="folder of the pages to write into")
    return parser.parse_args()


def plan_of(study: Study, settings: Sequence[str], folder: Path, jobs: int = 1) -> Plan:
    """The size of a study, from its row's settings and the given ones. Raises ConfigError for invalid settings.

    Trainings are kept when sources change; cells are not.
    """
    data = _common.data_folder()
    cells = folder / f"cells-{sources_digest()[:8]}"
    given = {key: yaml.safe_load(text) for key, _, text in (setting.partition("=") for setting in settings)}
    known = [key for key in Plan.model_fields if key not in CONTEXT]
    if unknown := [key for key in given if key not in known]:
        raise ConfigError(f"--set {unknown[0]}: expected one of {', '.join(known)}")
    context = {"folder": folder, "cells": cells, "data": data if data.is_dir() else None, "jobs": jobs}
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
    """Digest of all sources that a measurement may depend on."""
    digest = hashlib.sha256()
    for path in [*sorted((_common.ROOT / "rlpto").rglob("*.py")), *sorted(HERE.glob("*.py"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def measure(name: str, study: Study, plan: Plan) -> dict[str, dict[str, Any]]:
    """Figures and limits of all parts of a study, and their rows by title; empty if real data is needed and missing."""
    found: dict[str, dict[str, Any]] = {"figures": {}, "limits": {}, "tables": {}}
    if study.needs and (plan.data is None or not (plan.data / study.needs).exists()):
        return found
    for title, function in functions_of(name, study).items():
        _common.progress(f"{name}: {title.format(plan=plan)}")
        part = function(plan)
        found["figures"] |= part.figures
        found["limits"] |= part.limits
        if part.rows:
            found["tables"][title.format(plan=plan)] = part.rows
    return found


def measured(name: str, study: Study, plan: Plan, *, fresh: bool) -> dict[str, Any]:
    """Results of a study as plain data, with its CPU minutes; read back if sources and settings are unchanged."""
    path, settings = plan.folder / f"{name}.json", plan.model_dump_json(exclude=set(CONTEXT))
    digest = hashlib.sha256(f"{sources_digest()} {settings}".encode()).hexdigest()
    kept: dict[str, Any]
    if not fresh and path.is_file():
        with parsing(path, "the results of a study: remove it", ConfigError):
            kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["digest"] == digest:
            return kept
    _common.progress(f"measuring {name}")
    began = cpu_seconds()
    found = measure(name, study, plan) | {"digest": digest, "cpu_minutes": (cpu_seconds() - began) / 60}
    text = json.dumps(found, default=lambda number: number.item(), indent=1)  # numbers of NumPy
    write_text(path, text, "a measurement")
    kept = json.loads(text)
    return kept


def cpu_seconds() -> float:
    """CPU time of this process and of the finished processes that it waited for, such as trainings."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


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
