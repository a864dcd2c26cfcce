"""`rlpto history`: jobs of the service that are over."""

from __future__ import annotations

from typing import Annotated

import typer

from rlpto.cli.common import SERVICE, Verb
from rlpto.cli.remote import (
    CertificateOption,
    JsonOption,
    ServiceOption,
    clock_text,
    connect,
    number_text,
    print_json,
    print_rows,
    span_text,
)
from rlpto.io.errors import ConfigError

OVER = ("finished", "failed", "cancelled", "rejected")


def history(
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 20,
    state: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(OVER)}; may be repeated.")] = None,
    owner: Annotated[str | None, typer.Option(help="Of this user alone.")] = None,
    label: Annotated[str | None, typer.Option(metavar="KEY=VALUE", help="With this label.")] = None,
    service: ServiceOption = None,
    certificate: CertificateOption = None,
    json_: JsonOption = False,
) -> None:
    """List jobs that are over, newest first."""
    wrong = next((one for one in state or () if one not in OVER), None)
    if wrong is not None:
        raise ConfigError(f"--state {wrong}: expected one of {', '.join(OVER)}")
    with connect(service, certificate) as client:
        found = list(client.jobs(state or OVER, owner, label, limit))
    if json_:
        print_json(found)
        return
    print_rows(
        ("id", "name", "owner", "state", "submitted", "took", "GPU time", "accuracy", "reason"),
        (
            (
                *(job["id"], job["name"], job["owner"], job["state"], clock_text(job["submitted"])),
                span_text(None if job["ended"] is None else job["ended"] - job["submitted"]),
                *(span_text(job["gpu_seconds"]), number_text(job["accuracy"]), job["reason"]),
            )
            for job in found
        ),
        "no job is over",
    )


VERB = Verb(history, SERVICE, "rlpto history --state failed --limit 5")
