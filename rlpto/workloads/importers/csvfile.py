"""Read CSV files of known columns: split once, then checked and converted a whole column at a time."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from rlpto.core.stopping import RULE_TEXT, are_rules
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.errors import TraceError
from rlpto.io.reading import one_line
from rlpto.performance.metrics import METRICS
from rlpto.workloads.importers.base import (
    BLANKS,
    EPOCH,
    Format,
    ImportResult,
    Lines,
    elapsed,
    is_blank,
    numbers,
    read_log,
    times,
)
from rlpto.workloads.importers.tables import Table

_MOST_COLUMNS = 1000
_LONGEST_LINE = 100_000
"""Characters of a line with quotes."""
SEPARATORS = ",;\t|"
_TRES_COMMA = re.compile(r"(=[^,=]*),(?=[\w/:.-]+=)")
_GPUS = re.compile(r"(?:^|[,;/:])gpu(?::([\w.-]+))?[=:](\d{1,12})", re.ASCII)

_DAY = re.compile("(19|20)[0-9]{2}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])")
"""A date as 20240131, which is a number too."""

Columns = dict[str, list[str]]
"""[N] texts by the name of their column."""


def read_csv(
    path: Path,
    required: Sequence[str],
    skip_bad_lines: bool,
    optional: Sequence[str] = (),
    headerless: Sequence[str] = (),
) -> tuple[Columns, Lines]:
    """Read the columns of a csv file, and their lines; blank lines, and rows whose fields are all empty, do not count.
    The header determines the separator.

    required: columns that the file must have, in any order among others. optional: columns read if they exist. `X.gpu`
    and `X.gpu_type` are number and type of the GPUs in a column X in sacct's format, such as cpu=8,gres/gpu:a100=2.
    headerless: names of all columns of a file that may come without a header line.

    Raises TraceError if the header lacks a column. Rows with another number of fields than the
    header are rejected, each with its line.
    """
    text = read_log(path)
    numbered = [(number, line) for number, line in enumerate(io.StringIO(text, newline=None), 1) if line.strip()]
    separator = max(SEPARATORS, key=numbered[0][1].count)
    fields = partial(_quoted_fields if '"' in text else _plain_fields, separator)
    header, place = [name.strip() for name in fields(numbered[0][1])], f"{path}:{numbered[0][0]}"
    if len(header) > _MOST_COLUMNS:
        raise TraceError(f"{place}: more than {_MOST_COLUMNS} columns, expected {','.join(required)}")
    numbered = [row for row in numbered if row[1].strip(f'{separator}" \n')]
    if headerless and not set(required) & set(header):
        header = list(headerless)
    else:
        numbered = numbered[1:]
        missing = [name for name in required if _source(name, header) not in header]
        if missing:
            apart = ", separated by , ; | or tab" if len(header) == 1 else ""
            raise TraceError(
                f"{place}: column {missing[0]} missing, expected a header with {','.join(required)}{apart}"
            )
    wanted = [name for name in (*required, *optional) if _source(name, header) in header]
    twice = [name for name in wanted if header.count(_source(name, header)) > 1]
    if twice:
        raise TraceError(f"{place}: column {twice[0]} given twice, expected a header with {','.join(required)}")
    if not numbered:
        raise TraceError(f"{path}: no lines after the header, expected jobs")
    width = len(header)
    if separator == "," and any("TRES" in name for name in header):  # whose own commas are not quoted
        numbered = [(number, _TRES_COMMA.sub(r"\1;", line)) for number, line in numbered]
    rows = [fields(line) for _, line in numbered]
    lines = Lines(path, np.array([number for number, _ in numbered], dtype=np.int64), skip_bad_lines)
    lines.repeats = pd.Series([line.strip() for _, line in numbered], dtype=object).duplicated().to_numpy()
    widths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    lines.reject(widths == 0, lambda _: f"quotes that do not close, expected {width} fields")
    lines.reject(widths != width, lambda row: f"{widths[row]} fields, expected {width}")
    rows = [row if len(row) == width else [""] * width for row in rows]
    at = {name: header.index(_source(name, header)) for name in wanted}
    columns = {name: [row[i] for row in rows] for name, i in at.items()}
    for name in set(columns) - set(header):
        columns[name] = [_gpus_of(text)[name.rpartition(".")[2]] for text in columns[name]]
    return columns, lines


def _source(name: str, header: Sequence[str]) -> str:
    """Return the name of the column that holds `name`, which may be a part of the column."""
    column, _, part = name.rpartition(".")
    return column if name not in header and part in _gpus_of("") else name


def _gpus_of(text: str) -> dict[str, str]:
    """Parse the number and type of GPUs in a list of resources: cpu=8,gres/gpu:a100=2,gres/gpu=2 or gpu:a100:2."""
    found = [(int(count), gpu_type) for gpu_type, count in _GPUS.findall(text)]
    typed = [entry for entry in found if entry[1]]
    total = next((count for count, gpu_type in found if not gpu_type), sum(count for count, _ in typed))
    return {"gpu": str(total), "gpu_type": max(typed)[1] if typed else ""}


def table_format(name: str, table: Table) -> Format:
    """Return the format described by a table of its columns."""

    def read(path: Path, skip_bad_lines: bool) -> ImportResult:
        return _read_jobs(name, table, *read_csv(path, table.required, skip_bad_lines, table.optional))

    return Format(read, lambda head: ",".join(header_of(head)).startswith(table.begins))


def header_of(head: str) -> list[str]:
    """Return the texts in the first line of a file, usually the names of its columns."""
    line = re.split(r"[\r\n]", head.lstrip(), maxsplit=1)[0]
    return [name.strip(' "') for name in line.split(max(SEPARATORS, key=line.count))]


def _read_jobs(name: str, table: Table, found: Columns, lines: Lines) -> ImportResult:
    if table.dates is None:
        known = next((text for text in found[table.submit] if text.strip() not in BLANKS), "0")
        table = replace(table, dates=not _is_number(known))
        if _DAY.fullmatch(known.strip()) and all(
            _DAY.fullmatch(text.strip()) for text in found[table.submit] if text.strip() not in BLANKS
        ):
            raise TraceError(
                f"{lines.path}: column {table.submit}: {known} may be a date or seconds; "
                "expected dates as 2024-01-31, or smaller numbers of seconds"
            )
    columns = job_columns(name, table, found, lines)
    if table.identified:
        lines.once()
    lines.note(lines.repeats, "a row that repeats exactly, kept: no column names jobs")
    lines.without_gpus(columns["gpus"] == 0)
    if table.start:
        lines.leave_out(is_blank(found[table.start]))
    submit = columns["submit_time"][lines.good]
    since_1970 = table.dates or (name == "table" and len(submit) > 0 and np.median(submit) >= 1e9)  # September 2001
    origin = pd.Timestamp(table.origin) if table.origin else EPOCH if since_1970 else None
    return lines.finish(columns, origin, rebase=table.rebase)


def job_columns(name: str, table: Table, found: Columns, lines: Lines) -> dict[str, AnyArray]:
    """Convert the columns of a table, one job a row, to columns of a trace; broken rows are rejected."""

    def moments(column: str, blank: bool = True) -> FloatArray:
        if table.dates:
            return times(lines, column, found[column], blank, table.hours_from_utc)
        return numbers(lines, column, found[column], blank=np.nan if blank else None)

    start, end = (moments(column) if column else None for column in (table.start, table.end))
    submit = moments(table.submit, blank=False)
    duration = np.full(len(lines.number), np.nan)
    if table.duration:
        blank = np.nan if table.unknown else None
        duration = numbers(lines, table.duration, found[table.duration], blank=blank, clock=True)
    if start is not None:
        started = (table.start, found[table.start], start)
        elapsed(lines, (table.submit, found[table.submit], submit), started)
        if end is not None:
            ran = elapsed(lines, started, (table.end, found[table.end], end))
            duration = np.where(np.isfinite(ran), ran, duration)
    if table.state in found:
        running = [state.strip().lower() in ("running", "suspended") for state in found[table.state]]
        duration = np.where(running, np.nan, duration)
    gpus = numbers(
        lines, table.gpus, found[table.gpus], blank=0.0 if table.unknown else None, whole=not table.fractions
    )
    if table.gpu_share:
        gpus = gpus * numbers(lines, table.gpu_share, found[table.gpu_share], blank=0.0) / 1000
    if table.workers:
        gpus = gpus * numbers(lines, table.workers, found[table.workers], blank=1.0, whole=True)
    columns: dict[str, AnyArray] = {
        **{
            own: np.array([text.strip() for text in found[column]], dtype=object)
            for own in ("name", "user", "group", "gpu_type", "service_class", "model", "metric", "stop")
            if (column := getattr(table, own)) in found
        },
        "submit_time": submit,
        "duration": duration,
        "gpus": gpus,
    }
    by_line = [f"{name.partition('_')[0]}-{line}" for line in lines.number]
    named = zip(columns.get("name", by_line), by_line, strict=True)
    columns["name"] = np.array([given or usual for given, usual in named], dtype=object)
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


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _plain_fields(separator: str, line: str) -> list[str]:
    return line.rstrip("\n").split(separator, _MOST_COLUMNS)


def _quoted_fields(separator: str, line: str) -> list[str]:
    try:
        return next(csv.reader([line[:_LONGEST_LINE]], delimiter=separator, skipinitialspace=True, strict=True))
    except csv.Error:
        return []
