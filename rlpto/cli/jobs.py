"""`rlpto jobs`: jobs of the service that are not over."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from rlpto.cli.common import SERVICE, Verb
from rlpto.cli.remote import (
    CertificateOption,
    JsonOption,
    ServiceOption,
    connect,
    gpus_text,
    print_json,
    print_rows,
    progress_text,
    span_text,
)

OPEN = ("running", "starting", "queued", "checking", "submitted")


def jobs(
    owner: Annotated[str | None, typer.Option(help="Of this user alone.")] = None,
    label: Annotated[str | None, typer.Option(metavar="KEY=VALUE", help="With this label.")] = None,
    service: ServiceOption = None,
    certificate: CertificateOption = None,
    json_: JsonOption = False,
) -> None:
    """List jobs that wait or train: the caller's, or everybody's for operators."""
    with connect(service, certificate) as client:
        found = list(client.jobs(OPEN, owner, label))
    if json_:
        print_json(found)
        return
    now = time.time()
    print_rows(
        ("id", "name", "owner", "state", "GPUs", "done", "priority", "since", "reason"),
        (
            (
                *(job["id"], job["name"], job["owner"], job["state"], gpus_text(job), progress_text(job)),
                *(job["priority"], span_text(now - job["submitted"]), job["reason"]),
            )
            for job in found
        ),
        "no jobs wait or train",
    )


VERB = Verb(jobs, SERVICE, "rlpto jobs --label team=vision")
