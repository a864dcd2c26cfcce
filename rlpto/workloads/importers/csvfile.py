"""CSV files of known columns: split once, then checked and converted a whole column at a time."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from rlpto.core.stopping import RULE_TEXT, are_rules
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.errors import TraceError
from rlpto.io.reading import one_line
from rlpto.performance.metrics import METRICS
from rlpto.workloads.importers.base import EPOCH, Format, ImportResult, Lines, is_blank, numbers, read_log, times
from rlpto.workloads.importers.tables import Table

_MOST_COLUMNS = 1000
_LONGEST_LINE = 100_000
"""Characters of a line with quotes."""


Columns = dict[str, list[str]]
"""[N] texts by the name of their column."""


def read_csv(
    path: Path,
    required: Sequence[str],
    skip_bad_lines: bool,
    optional: Sequence[str] = (),
    headerless: Sequence[str] = (),
) -> tuple[Columns, Lines]:
    """Columns of a comma-separated file, and the lines they stand on; blank lines do not count.

    required: columns that must be there, in any order among others. optional: columns taken if there.
    headerless: names of all columns of a file that may come without a header line.

    Raises TraceError if the header lacks a column. Rows with another number of fields than the
    header are rejected, each with its line.
    """
    text = read_log(path)
    numbered = [(number, line) for number, line in enumerate(io.StringIO(text, newline=None), 1) if line.strip()]
    fields = _quoted_fields if '"' in text else _plain_fields
    names = [name.strip() for name in fields(numbered[0][1])]
    if len(names) > _MOST_COLUMNS:
        raise TraceError(f"{path}:{numbered[0][0]}: more than {_MOST_COLUMNS} columns, expected {','.join(required)}")
    header = names
    if headerless and not set(required) & set(header):
        header = list(headerless)
    else:
        numbered = numbered[1:]
        missing = [name for name in required if name not in header]
        if missing:
            raise TraceError(f"{path}:1: column {missing[0]} missing, expected a header with {','.join(required)}")
    wanted = [name for name in (*required, *optional) if name in header]
    twice = [name for name in wanted if header.count(name) > 1]
    if twice:
        raise TraceError(f"{path}:1: column {twice[0]} given twice, expected a header with {','.join(required)}")
    if not numbered:
        raise TraceError(f"{path}: no lines after the header, expected jobs")
    width = len(header)
    rows = [fields(line) for _, line in numbered]
    lines = Lines(path, np.array([number for number, _ in numbered], dtype=np.int64), skip_bad_lines)
    widths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    lines.reject(widths == 0, lambda _: f"quotes that do not close, expected {width} fields")
    lines.reject(widths != width, lambda row: f"{widths[row]} fields, expected {width}")
    blank = [""] * width
    for row in np.flatnonzero(widths != width):
        rows[row] = blank
    at = {name: header.index(name) for name in wanted}
    return {name: [row[i] for row in rows] for name, i in at.items()}, lines


def table_format(name: str, table: Table) -> Format:
    """A format that is described by a table of its columns."""

    def read(path: Path, skip_bad_lines: bool) -> ImportResult:
        return _read_jobs(name, table, *read_csv(path, table.required, skip_bad_lines, table.optional))

    return Format(table.description, read, lambda head: head.startswith(table.begins))


def _read_jobs(name: str, table: Table, found: Columns, lines: Lines) -> ImportResult:
    def moments(column: str, blank: bool = True) -> FloatArray:
        if table.dates:
            return times(lines, column, found[column], blank, table.hours_from_utc)
        return numbers(lines, column, found[column], blank=np.nan if blank else None)

    start, end = (moments(column) if column else None for column in (table.start, table.end))
    duration = np.full(len(lines.number), np.nan)
    if table.duration:
        duration = numbers(lines, table.duration, found[table.duration], blank=np.nan if table.unknown else None)
    if start is not None and end is not None:
        lines.reject(
            end < start,
            lambda i: f"{table.end} {found[table.end][i]!r}, expected {table.start} {found[table.start][i]!r} or later",
        )
        duration = np.where(np.isfinite(start) & np.isfinite(end), end - start, duration)
    gpus = numbers(
        lines, table.gpus, found[table.gpus], blank=0.0 if table.unknown else None, whole=not table.fractions
    )
    if table.gpu_share:
        gpus = gpus * numbers(lines, table.gpu_share, found[table.gpu_share], blank=0.0) / 1000
    texts = {"name": table.name, "user": table.user, "group": table.group}
    columns: dict[str, AnyArray] = {
        "name": np.array([f"{name.partition('_')[0]}-{line}" for line in lines.number], dtype=object),
        **{own: np.array(found[column], dtype=object) for own, column in texts.items() if column in found},
        "submit_time": moments(table.submit, blank=False),
        "duration": duration,
        "gpus": np.ceil(np.round(gpus, 9)),
    }
    columns |= _training_columns(table, found, lines)
    lines.without_gpus(columns["gpus"] == 0)
    if table.start:
        lines.never_ran(is_blank(found[table.start]))
    origin = pd.Timestamp(table.origin) if table.origin else EPOCH if table.dates else None
    return lines.finish(columns, origin, rebase=table.rebase)


def _training_columns(table: Table, found: Columns, lines: Lines) -> dict[str, AnyArray]:
    """What a file says of the training itself: model, batch size, metric and rule to stop by."""
    names = {"model": table.model, "metric": table.metric, "stop": table.stop}
    columns: dict[str, AnyArray] = {
        own: np.array([text.strip() for text in found[column]], dtype=object)
        for own, column in names.items()
        if column in found
    }
    if "model" in columns:
        lines.reject(columns["model"] == "", lambda _: f"{table.model} is empty, expected the name of a model")
    if table.batch_size in found:
        columns["batch_size"] = numbers(lines, table.batch_size, found[table.batch_size], blank=0.0, whole=True)
    if (metric := columns.get("metric")) is not None:
        known = np.isin(metric.astype(str), ["", *METRICS])
        lines.reject(~known, lambda i: f"metric {one_line(repr(metric[i]))}, expected one of {', '.join(METRICS)}")
    if (stop := columns.get("stop")) is not None:
        good = are_rules(stop.tolist())
        lines.reject(~good, lambda i: f"stop {one_line(repr(stop[i]))}, expected {RULE_TEXT}")
    return columns


def _plain_fields(line: str) -> list[str]:
    return line.rstrip("\n").split(",", _MOST_COLUMNS)


def _quoted_fields(line: str) -> list[str]:
    try:
        return next(csv.reader([line[:_LONGEST_LINE]], strict=True))
    except csv.Error:
        return []
