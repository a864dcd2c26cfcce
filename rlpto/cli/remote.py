"""What the verbs of the job service share: how to reach it, and how jobs are shown."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlpto.cli.common import make_console
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

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86_400.0


def connect(service: str | None, certificate: Path | None = None) -> Client:
    """The service that is meant; the token comes from $RLPTO_TOKEN, so that it stands in no list of processes.

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


def span_text(seconds: float | None) -> str:
    """A time in words that fit into a column: 42 s, 12 min, 3.5 h, 2.1 d; empty for None."""
    if seconds is None:
        return ""
    if abs(seconds) < 2 * _MINUTE_S:
        return f"{seconds:.0f} s"
    if abs(seconds) < 2 * _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    return f"{seconds / _HOUR_S:.1f} h" if abs(seconds) < 2 * _DAY_S else f"{seconds / _DAY_S:.1f} d"


def in_text(at: float | None) -> str:
    """A time that is to come, from now on; empty for None."""
    return "" if at is None else f"in {span_text(max(0.0, at - time.time()))}"


def clock_text(at: float | None) -> str:
    """A time by the clock of this machine; empty for None."""
    return "" if at is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))


def progress_text(job: Answer) -> str:
    """How far a job is."""
    return f"{job['progress'] / job['epochs']:.0%}"


def gpus_text(job: Answer) -> str:
    """GPUs that a job holds and asks for."""
    return f"{job['gpus_held']}/{job['gpus']}"


def number_text(value: Any) -> str:
    """A number that may be missing."""
    return "" if value is None else f"{value:.4g}"
