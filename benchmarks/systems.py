"""The published systems against the behaviours that their pages claim; writes the measured part of docs/systems/*.md.

    python benchmarks/systems.py [--only coach,pollux] [--fresh] [--no-pages]

What a system's module (`_systems_NAME.py`) has measured is kept in runs/systems/NAME.json until its source or RLPTO's
changes, so that an interrupted call goes on where it was. Exits 1 if a behaviour that a page claims is not reached.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import _common

from rlpto.io.files import write_text

SYSTEMS = ("adaptdl", "coach", "configuration_manager", "knowledge", "pollux", "schedulearn", "sia")
PAGES = _common.ROOT / "docs" / "systems"
PAGE_NAMES = {"knowledge": "README.md"}
"""Pages that are not called like their system."""
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
Row = Mapping[str, object]


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("--only", metavar="A,B", help=f"systems to measure, of {', '.join(SYSTEMS)}")
    arguments.add_argument("--fresh", action="store_true", help="measure again what is kept")
    arguments.add_argument("--no-pages", action="store_true", help="leave docs/systems as it is")
    arguments.add_argument("--folder", type=Path, default=Path("runs/systems"), help="where measurements are kept")
    options = arguments.parse_args()
    names = SYSTEMS if options.only is None else tuple(options.only.split(","))
    unknown = [name for name in names if name not in SYSTEMS]
    if unknown:
        _common.refuse(f"--only: no system {unknown[0]!r}, expected some of {', '.join(SYSTEMS)}")
    checks: list[_common.Check] = []
    try:
        for name in names:
            with _common.bad_input():
                found = measured(name, options.folder, fresh=options.fresh)
            checks += [_common.Check(**check) for check in found["checks"]]
            if not options.no_pages:
                write_block(PAGES / PAGE_NAMES.get(name, f"{name.replace('_', '-')}.md"), block(name, found))
    except KeyboardInterrupt:
        print("interrupted; the same command goes on where it was", file=sys.stderr)
        sys.exit(130)
    _common.finish(checks, options.json)


def measured(name: str, folder: Path, *, fresh: bool) -> dict[str, Any]:
    """Checks and tables of a system, as plain data: those that are kept, if nothing has changed since."""
    path, digest = folder / f"{name}.json", _common.sources_digest(name)
    if path.exists() and not fresh:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if kept["digest"] == digest:
            return kept
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    data = _common.data_folder()
    began = time.process_time()
    checks, tables = importlib.import_module(f"_systems_{name}").measure(data if data.is_dir() else None)
    found = {
        "digest": digest,
        "cpu_minutes": (time.process_time() - began) / 60,
        "checks": [asdict(check) for check in checks],
        "tables": {title: list(rows) for title, rows in tables.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(found, default=float, indent=1), "a measurement")
    return found


def block(name: str, found: Mapping[str, Any]) -> str:
    """The measured part of a page: what is claimed, then the tables."""
    lines = [
        f"`python benchmarks/systems.py --only {name}` wrote what follows ({found['cpu_minutes']:.1f} CPU-minutes)."
    ]
    if found["checks"]:
        rows = [
            {
                "behaviour": check["name"],
                "measured": f"{figure(check['value'])} {check['unit']}".strip(),
                "claimed": f"at {'least' if check['least'] else 'most'} {figure(check['limit'])}",
                "": "yes" if _common.Check(**check).passed else "**no**",
            }
            for check in found["checks"]
        ]
        lines += ["", *table(rows)]
    for title, rows in found["tables"].items():
        lines += ["", f"{title}:", "", *table(rows)]
    return "\n".join(lines)


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
