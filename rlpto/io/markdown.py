"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def markdown_table(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Lines of a table in Markdown, with the columns of the first row."""
    names = list(rows[0])
    lines: list[Sequence[object]] = [names, ["---"] * len(names), *([row[name] for name in names] for row in rows)]
    return [f"| {' | '.join(map(_cell, line))} |" for line in lines]


def _cell(value: object) -> str:
    """A value on one line, escaped for use in a cell."""
    text = f"{value:.6g}" if isinstance(value, float) else "" if value is None else " ".join(str(value).split())
    return text.replace("|", "\\|").replace("<", "&lt;")
