"""Writes the pages of the documentation site into build/docs: the pages of docs/, files that they link to, the requests
of the service, and the pages of `site_pages.py`.

`make docs` runs this before zensical builds the site (`mkdocs.yml`). A link from a page to a file outside docs/ leads
to a copy of that file under repository/, so the site needs no address of the repository.
"""

import base64
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
LINK = re.compile(r"(\[[\w./-]+(?:\.md|/)\]|\])\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")
"""The text of a link if it is a path, else its closing bracket; the target; the anchor."""


class Fields(griffe.Extension):
    """Turns the parameters and fields that a docstring explains, as in `time: seconds`, into a list."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by mkdocstrings for every object, with all its members."""
        if obj.docstring and not obj.is_module:
            names = "|".join({*obj.members, *(one.name for one in getattr(obj, "parameters", ()))}) or "(?!)"
            field = rf"(?:^|(?<=[.;:)] ))((?:{names})(?:, (?:{names}))*): (?=\S)"
            text = re.sub(field, r"\n\n- `\1`: ", obj.docstring.value, flags=re.M)
            obj.docstring.value = re.sub(r"(?:^|(?<=\. ))(?=Raises )", "\n\n", text, flags=re.M)


def place_of(path: Path) -> Path:
    """Where a file of the repository is in the site. A notebook becomes a page."""
    place = STAGED / (path.relative_to(DOCS) if path.is_relative_to(DOCS) else "repository" / path.relative_to(ROOT))
    return place.with_suffix(".md") if path.suffix == ".ipynb" else place


def title_of(page: Path) -> str:
    """The first heading of a page, without its explanation after a colon."""
    return page.read_text(encoding="utf-8").partition("# ")[2].partition("\n")[0].partition(":")[0]


def stage(path: Path) -> None:
    """Copy a file, and if it is a page all files that it links to. Links whose text is a path get the page's title."""
    place = place_of(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, place)

    def moved(link: re.Match[str]) -> str:
        target = (path.parent / link[2]).resolve()
        if not target.is_file():
            return link[0]  # no link, or one that zensical reports
        if not place_of(target).exists():
            stage(target)
        text = link[1] if link[1] == "]" or target.suffix != ".md" else f"[{title_of(target)}]"
        return f"{text}({os.path.relpath(place_of(target), place.parent)}{link[3] or ''})"

    if place.suffix == ".md":
        text = notebook_page(path, place) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
        place.write_text(LINK.sub(moved, text), encoding="utf-8")


def notebook_page(notebook: Path, place: Path) -> str:
    """A notebook and its outputs in Markdown; its pictures are written next to `place`."""
    parts: list[str] = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                picture = place.with_name(f"{place.stem}-{len(parts)}.png")
                picture.write_bytes(base64.b64decode(data["image/png"]))
                parts.append(f"![Output of the cell above]({picture.name})")
            else:
                parts.append(f"```text\n{''.join(output.get('text') or data['text/plain']).rstrip()}\n```")
    return "\n\n".join(parts)


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


def main(pictures: bool) -> None:
    """Write everything again. pictures: run every policy, for the pictures of its schedule."""
    from site_pages import case_pages, gallery  # not where mkdocstrings imports this file

    from rlpto.bench.leaderboard import entries_of
    from rlpto.policies.registry import own_policies

    say("pages of docs/")
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    shutil.rmtree(STAGED, ignore_errors=True)
    for path in DOCS.rglob("*"):
        if path.is_file():
            stage(path)
    say("requests of the service, cases, policies")
    entries, wrong = entries_of([ROOT / "submissions"])
    if wrong:
        sys.exit("\n".join(wrong))
    shown = STAGED if pictures else None
    pages = {"api/rest": rest_page(), **case_pages(entries), "policies": gallery(own_policies(), shown, say)}
    for name, text in pages.items():
        (STAGED / f"{name}.md").parent.mkdir(exist_ok=True)
        with (STAGED / f"{name}.md").open("a", encoding="utf-8") as page:  # after what docs/ has of it
            page.write(text)
    for name in (str(path.relative_to(STAGED)) for path in STAGED.rglob("*.md")):
        if f" {name}\n" not in navigation and not name.startswith("repository/"):
            sys.exit(f"mkdocs.yml: nav has no {name}; expected every page of docs/ and every page that is made")


def say(what: str) -> None:
    """Show what is under way."""
    print(f"docs: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(pictures="--no-pictures" not in sys.argv)
