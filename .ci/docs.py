"""Writes the pages of the documentation site into build/docs: those of docs/, files that they link to, the API, and
those of `site_pages.py`.

`make docs` runs this before zensical builds the site (`mkdocs.yml`). A link from a page to a file outside docs/ leads
to a copy of that file under repository/, so the site needs no address of the repository.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import griffe

from rlpto.io.markdown import markdown_table

ROOT = Path(__file__).parents[1]
DOCS, STAGED = ROOT / "docs", ROOT / "build" / "docs"
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
MODULES: dict[str, list[str]] = {
    "core.policy": ["Policy", "StandingPolicy", "LookaheadPolicy", "BasePolicy", "PolicyClass"],
    "core.cluster": [],
    "core.job_table": ["JobTable"],
    "experiments.environments": [],
    "bench.suite": [],
    "bench.submissions": ["Card", "run", "verify"],
    "bench.results": [],
    "client": ["Client", "ServiceError"],
}
"""The public modules, and which of their names have docstrings on the site; all if none is named."""


class Fields(griffe.Extension):
    """Lines of a docstring that start with names and a colon, as in `time: seconds`, become a list."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by mkdocstrings for every object."""
        if obj.docstring and not obj.is_module:
            obj.docstring.value = re.sub(r"^(\w+(?:, \w+)*): (?=\S)", r"\n- `\1`: ", obj.docstring.value, flags=re.M)


def place_of(path: Path) -> Path:
    """Where a file of the repository is in the site."""
    return STAGED / (path.relative_to(DOCS) if path.is_relative_to(DOCS) else "repository" / path.relative_to(ROOT))


def stage(path: Path) -> None:
    """Copy a file, and if it is a page all files that it links to."""
    place_of(path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, place_of(path))

    def moved(link: re.Match[str]) -> str:
        target = (path.parent / link[1]).resolve()
        if target.is_file() and not place_of(target).exists():
            stage(target)  # zensical reports what is not there
        return f"]({os.path.relpath(place_of(target), place_of(path).parent)}{link[2] or ''})"

    if path.suffix == ".md":
        place_of(path).write_text(LINK.sub(moved, path.read_text(encoding="utf-8")), encoding="utf-8")


def rest_page() -> str:
    """The requests that the service answers, from its openapi.json."""
    asked = [sys.executable, "-m", "rlpto.service.web", "configs/service.yaml", "--openapi"]
    api = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True, cwd=ROOT).stdout)
    requests = [
        {"request": f"`{method.upper()} {path}`", "": what.get("description", what["summary"])}
        for path, methods in api["paths"].items()
        for method, what in methods.items()
    ]
    head = ["# REST API", "", "In full: `/api/v1/openapi.json` of a running service.", ""]
    return "\n".join([*head, *markdown_table(requests), ""])


def main() -> None:
    """Write everything again."""
    from site_pages import case_pages, gallery  # not where mkdocstrings imports this file

    from rlpto.bench.leaderboard import entries_of
    from rlpto.policies.registry import own_policies

    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    shutil.rmtree(STAGED, ignore_errors=True)
    for path in DOCS.rglob("*"):
        if path.is_file():
            stage(path)
    pages = {f"api/{name}": f"# rlpto.{name}\n\n::: rlpto.{name}\n" for name in MODULES}
    for name, members in MODULES.items():
        pages[f"api/{name}"] += f"    options: {{members: {json.dumps(members)}}}\n" if members else ""
    pages["api/rest"] = rest_page()
    entries, wrong = entries_of([ROOT / "submissions"])
    if wrong:
        sys.exit("\n".join(wrong))
    pages |= case_pages(entries) | {"policies": gallery(entries, STAGED, own_policies())}
    for name, text in pages.items():
        (STAGED / f"{name}.md").parent.mkdir(exist_ok=True)
        with (STAGED / f"{name}.md").open("a", encoding="utf-8") as page:  # after what docs/ has of it
            page.write(text)
    for name in (str(path.relative_to(STAGED)) for path in STAGED.rglob("*.md")):
        if f" {name}\n" not in navigation and not name.startswith("repository/"):
            sys.exit(f"mkdocs.yml: nav has no {name}; expected every page of docs/ and every page that is made")


if __name__ == "__main__":
    main()
