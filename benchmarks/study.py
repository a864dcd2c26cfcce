"""The studies behind the pages of docs/: measures them, and writes the measured part of each page.

    python benchmarks/study.py [NAME ...] [--fresh] [--no-page] [--set KEY=VALUE]

What a study's module (`_study_NAME.py`) has measured is kept in runs/studies/NAME.json until its source or RLPTO's
changes, so that an interrupted call continues where it was. Exits 1 if a figure that a page claims is not reached.
"""

from __future__ import annotations

import importlib
import inspect
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import _common

from rlpto.io.files import write_text


class Page(NamedTuple):
    """A page under docs/ that a study writes into. claims: show the table of what is claimed."""

    path: str
    claims: bool = True


STUDIES = {
    "accuracy": Page("accuracy.md"),
    "adaptdl": Page("systems/adaptdl.md"),
    "classes": Page("classes.md", claims=False),
    "coach": Page("systems/coach.md"),
    "configuration_manager": Page("systems/configuration-manager.md"),
    "knowledge": Page("systems/README.md"),
    "pollux": Page("systems/pollux.md"),
    "schedulearn": Page("systems/schedulearn.md"),
    "sia": Page("systems/sia.md"),
    "stopping": Page("stopping.md", claims=False),
}
PAGES, KEPT = _common.ROOT / "docs", Path("runs/studies")
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
Row = Mapping[str, object]


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("names", nargs="*", metavar="name", help=f"{', '.join(STUDIES)}; without any: all")
    arguments.add_argument("--fresh", action="store_true", help="measure again what is kept")
    arguments.add_argument("--no-page", action="store_true", help="print the measured part, leave docs/ as it is")
    arguments.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="other settings of a study; keeps nothing"
    )
    options = arguments.parse_args()
    if unknown := [name for name in options.names if name not in STUDIES]:
        _common.refuse(f"there is no study {unknown[0]!r}, expected some of {', '.join(STUDIES)}")
    checks: list[_common.Check] = []
    try:
        for name in options.names or STUDIES:
            with _common.bad_input():
                found = measured(name, options.set, fresh=options.fresh)
            checks += [_common.Check(**check) for check in found["checks"] if check["name"] not in found["missed"]]
            text = block(name, found)
            if options.no_page or options.set:
                print(text)
            else:
                write_block(PAGES / STUDIES[name].path, text)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it was", file=sys.stderr)
        sys.exit(130)
    _common.finish(checks, options.json)


def measured(name: str, settings: Sequence[str], *, fresh: bool) -> dict[str, Any]:
    """Checks and tables of a study, as plain data: those that are kept, if nothing has changed since."""
    path, digest = KEPT / f"{name}.json", _common.sources_digest(name)
    if path.exists() and not fresh and not settings:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if kept["digest"] == digest:
            return kept
    _common.progress(f"measuring {name}")
    data, module = _common.data_folder(), importlib.import_module(f"_study_{name}")
    given = settings_of(module.measure, settings)
    began = time.process_time()
    checks, tables = module.measure(data if data.is_dir() else None, **given)
    found = {
        "digest": digest,
        "cpu_minutes": (time.process_time() - began) / 60,
        "checks": [asdict(check) for check in checks],
        "missed": list(getattr(module, "MISSED", ())),
        "tables": {title: list(rows) for title, rows in tables.items()},
    }
    if not settings:
        KEPT.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(found, default=float, indent=1), "a measurement")
    return found


def settings_of(measure: Any, settings: Sequence[str]) -> dict[str, Any]:
    """Values for the keyword arguments of a study, of the types of their defaults."""
    known = {key: one.default for key, one in inspect.signature(measure).parameters.items() if key != "data"}
    given = {}
    for key, _, text in (setting.partition("=") for setting in settings):
        if key not in known:
            _common.refuse(f"--set {key}: expected one of {', '.join(known) or 'none, the study has no settings'}")
        try:
            given[key] = type(known[key])(text)
        except ValueError:
            _common.refuse(f"--set {key}={text}: expected a value like {known[key]}")
    return given


def block(name: str, found: Mapping[str, Any]) -> str:
    """The measured part of a page: what is claimed, then the tables."""
    lines = [f"`python benchmarks/study.py {name}` wrote what follows ({found['cpu_minutes']:.1f} CPU-minutes)."]
    if found["checks"] and STUDIES[name].claims:
        lines += ["", *table([claim(check, found["missed"]) for check in found["checks"]])]
    for title, rows in found["tables"].items():
        lines += ["", f"{title}:", "", *table(rows)]
    return "\n".join(lines)


def claim(check: Mapping[str, Any], missed: Sequence[str]) -> Row:
    """A row: what was measured, what is claimed, and whether it holds; a miss that is known is no failure."""
    failed = "**missed**" if check["name"] in missed else "**no**"
    return {
        "behaviour": check["name"],
        "measured": f"{figure(check['value'])} {check['unit']}".strip(),
        "claimed": f"at {'least' if check['least'] else 'most'} {figure(check['limit'])}",
        "": "yes" if _common.Check(**check).passed else failed,
    }


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of a Markdown table."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = ["| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |"]
    lines += ["| " + " | ".join(figure(row.get(column, "")) for column in columns) + " |" for row in rows]
    return lines


def figure(value: object) -> str:
    """A number with four digits that count; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or not math.isfinite(value):
        return f"{value}"
    return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def write_block(page: Path, text: str) -> None:
    """Put the text between the marks of a page. Ends the program if it has none."""
    before = page.read_text(encoding="utf-8") if page.exists() else ""
    if before.count(BEGIN) != 1 or before.count(END) != 1:
        _common.refuse(f"{page}: expected one line {BEGIN} and one line {END}")
    head, _, rest = before.partition(BEGIN)
    after = f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"
    if after != before:
        write_text(page, after, "a page")


if __name__ == "__main__":
    main()
