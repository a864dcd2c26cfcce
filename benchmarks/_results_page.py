"""docs/results.md: what each part of `make results` found, between two marks; the text around them stays."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from _results_numbers import Numbers
from _results_plan import ClaimForm, Study, TableForm

from rlpto.errors import ConfigError
from rlpto.files import write_text

BEGIN, END = "<!-- begin: written by make results -->", "<!-- end: written by make results -->"
HEAD = "# Results\n\nAll figures below come from `make results`.\n"


@dataclass(frozen=True)
class Claim:
    """Something that was to be reached. figure: what was measured. reached: None where the reader is to judge."""

    text: str
    figure: str
    reached: bool | None


@dataclass(frozen=True)
class Section:
    """What one part found. text: Markdown. claims: of the part, in order. facts: how it was run, in words."""

    name: str
    title: str
    text: str
    claims: Sequence[Claim] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


def section_of(name: str, study: Study, numbers: Numbers, facts: Mapping[str, object]) -> Section:
    """The section of a study from its numbers. facts: further ones, about what was run."""
    known = {**facts, **numbers.facts}
    text = "\n\n".join(
        [study.text.format_map(known), *(text for form in study.tables for text in _tables(form, numbers))]
    )
    claims = [Claim(form.text, form.figure.format_map(known), _reached(form, known)) for form in study.claims]
    return Section(name, study.title, text, claims, {key: fact.format_map(known) for key, fact in study.facts.items()})


def _reached(form: ClaimForm, facts: Mapping[str, Any]) -> bool | None:
    """Whether the fact of a claim is within its limits, or true where it has none; None without a fact."""
    if form.fact is None:
        return None
    fact = facts[form.fact]
    if form.at_least is not None:
        return bool(fact >= form.at_least)
    return bool(fact if form.at_most is None else fact <= form.at_most)


def _tables(form: TableForm, numbers: Numbers) -> Iterator[str]:
    """The tables of a form: one, or one for each value of the column by which it is split, under that value."""
    found = numbers.tables[form.of]
    parts = [("", found)] if form.split is None else list(found.groupby(form.split, sort=False))
    for value, part in parts:
        others = [] if form.rest is None else [name for name in part if name not in (*form.columns, "name", form.split)]
        rows = [
            [
                *(shape.format_map(row) for shape in form.columns.values()),
                *((form.rest or "").format(row[name]) for name in others),
            ]
            for row in part.to_dict("records")
        ]
        yield (f"**{value}**\n\n" if form.split else "") + table([*form.columns, *others], rows)


def save_section(folder: Path, section: Section, tables: Mapping[str, pd.DataFrame]) -> None:
    """Keep a section as JSON, and its tables as CSV and JSON."""
    for name, table in tables.items():
        write_text(folder / "tables" / f"{name}.csv", table.to_csv(index=False), "a table")
        text = json.dumps(json.loads(table.to_json(orient="records")), indent=1)
        write_text(folder / "tables" / f"{name}.json", text + "\n", "a table")
    write_text(folder / "sections" / f"{section.name}.json", json.dumps(asdict(section), indent=1) + "\n", "a section")


def load_sections(folder: Path, names: Sequence[str]) -> list[Section]:
    """The sections that are there, in the order of `names`. Raises ConfigError if one cannot be read."""
    found = []
    for name in names:
        path = folder / "sections" / f"{name}.json"
        if not path.is_file():
            continue
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            found.append(Section(**content | {"claims": tuple(Claim(**claim) for claim in content["claims"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{path}: not a section of the results ({error}), expected one: remove it") from None
    return found


def write_page(path: Path, sections: Sequence[Section], cpu: Mapping[str, float]) -> None:
    """Put the sections between the marks of a page; a page that is not there is begun."""
    before, after = f"{HEAD}\n", "\n"
    if path.is_file():
        page = path.read_text(encoding="utf-8")
        if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
            raise ConfigError(f"{path}: expected the marks {BEGIN} and {END}, once each and in this order")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
    write_text(path, f"{before}{BEGIN}\n{page_text(sections, cpu)}{END}{after}", "the page of results")


def page_text(sections: Sequence[Section], cpu: Mapping[str, float]) -> str:
    """Claims first, then every section."""
    total = sum(cpu.values()) / 3600
    parts = ", ".join(f"{name} {seconds / 3600:.2f}" for name, seconds in sorted(cpu.items()))
    rows = [
        [claim.text, claim.figure, {True: "yes", False: "**no**", None: "see below"}[claim.reached]]
        for section in sections
        for claim in section.claims
    ]
    lines = [f"CPU time of all that is below: {total:.2f} h ({parts}).", ""]
    if rows:
        lines += [table(["what was to be reached", "figure", "reached"], rows), ""]
    for section in sections:
        lines += [f"## {section.title}", "", section.text.strip(), ""]
        if section.facts:
            lines += ["; ".join(f"{name}: {fact}" for name, fact in section.facts.items()) + ".", ""]
    return "\n".join(lines)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
