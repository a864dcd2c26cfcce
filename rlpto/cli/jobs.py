"""`rlpto jobs`: jobs of the service that are not over."""

from __future__ import annotations

from typing import Annotated

import typer

from rlpto.cli.common import SERVICE, Verb
from rlpto.cli.remote import CertificateOption, JsonOption, ServiceOption, connect, print_jobs
from rlpto.store.jobs import ENDED, STATES


def jobs(
    owner: Annotated[str | None, typer.Option(help="Of this user alone.")] = None,
    label: Annotated[str | None, typer.Option(metavar="KEY=VALUE", help="With this label.")] = None,
    service: ServiceOption = None,
    certificate: CertificateOption = None,
    json_: JsonOption = False,
) -> None:
    """List jobs that wait or train: the caller's, or all users' for operators."""
    with connect(service, certificate) as client:
        found = list(client.jobs([state for state in STATES if state not in ENDED], owner, label))
    columns = ("id", "name", "owner", "state", "GPUs", "done", "priority", "since", "reason")
    print_jobs(found, columns, "no jobs wait or train", json_)


VERB = Verb(jobs, SERVICE, "rlpto jobs --label team=vision")
