"""Shared by the commands of the job service: how to reach it, and how jobs are shown."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlpto.cli.common import make_console
from rlpto.io.durations import span_text
from rlpto.io.errors import ConfigError

if TYPE_CHECKING:
    from rlpto.client import Answer, Client

ServiceOption = Annotated[
    str | None,
    typer.Option("--service", metavar="URL", help="Address; $RLPTO_SERVICE or the last one started here if not given."),
]
CertificateOption = Annotated[
    Path | None,
    typer.Option("--certificate", metavar="FILE", help="Certificate (PEM) of the service, if it is its own."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line, for programs.")]
JobArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the job.")]


def connect(service: str | None, certificate: Path | None = None) -> Client:
    """Client of the service; the token comes from $RLPTO_TOKEN, so that it appears in no list of processes.

    Raises ConfigError where the packages for it are missing, ServiceError without a token.
    """
    try:
        from rlpto.client import Client
    except ModuleNotFoundError as missing:
        raise ConfigError(f"{missing.name} is not installed: pip install 'rlpto[service]'") from None
    return Client(service, certificate=certificate)


def print_json(answers: Iterable[Answer]) -> None:
    """One object a line."""
    for answer in answers:
        print(json.dumps(answer), flush=True)


def print_rows(headings: Sequence[str], rows: Iterable[Sequence[str]], none: str) -> None:
    """A table, or the line `none`."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(*headings, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*map(escape, row))
    make_console().print(table if table.row_count else none)


def in_text(at: float | None) -> str:
    """Time left until a future moment; empty for None."""
    return "" if at is None else f"in {span_text(max(0.0, at - time.time()))}"


def clock_text(at: float | None) -> str:
    """A time by the clock of this machine; empty for None."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def progress_text(job: Answer) -> str:
    """Share of a job's epochs that are done."""
    return f"{job['progress'] / job['epochs']:.0%}"


def gpus_text(job: Answer) -> str:
    """GPUs that a job holds and asks for."""
    return f"{job['gpus_held']}/{job['gpus']}"


def number_text(value: Any) -> str:
    """A number that may be missing."""
    return "" if value is None else f"{value:.4g}"


_COLUMNS: dict[str, Callable[[Answer], str]] = {
    "GPUs": gpus_text,
    "done": progress_text,
    "since": lambda job: span_text(time.time() - job["submitted"]),
    "submitted": lambda job: clock_text(job["submitted"]),
    "took": lambda job: span_text(None if job["ended"] is None else job["ended"] - job["submitted"]),
    "GPU time": lambda job: span_text(job["gpu_seconds"]),
    "accuracy": lambda job: number_text(job["accuracy"]),
}
"""Texts of a job by heading; any other heading is a key of the job."""


def print_jobs(jobs: Sequence[Answer], columns: Sequence[str], none: str, json_: bool) -> None:
    """Jobs as a table with these columns, or the line `none`; json_: as JSON."""
    if json_:
        print_json(jobs)
        return
    rows = ([_COLUMNS[name](job) if name in _COLUMNS else str(job[name]) for name in columns] for job in jobs)
    print_rows(columns, rows, none)
