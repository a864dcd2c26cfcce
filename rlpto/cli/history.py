"""`rlpto history`: jobs of the service that are over."""

from __future__ import annotations

from typing import Annotated

import typer

from rlpto.cli.common import SERVICE, Verb
from rlpto.cli.remote import CertificateOption, JsonOption, ServiceOption, connect, print_jobs
from rlpto.io.errors import ConfigError
from rlpto.store.jobs import ENDED


def history(
    limit: Annotated[int, typer.Option(min=1, help="At most this number.")] = 20,
    state: Annotated[list[str] | None, typer.Option(help=f"One of {', '.join(ENDED)}; may be repeated.")] = None,
    owner: Annotated[str | None, typer.Option(help="Of this user alone.")] = None,
    label: Annotated[str | None, typer.Option(metavar="KEY=VALUE", help="With this label.")] = None,
    service: ServiceOption = None,
    certificate: CertificateOption = None,
    json_: JsonOption = False,
) -> None:
    """List jobs that are over, newest first."""
    wrong = next((one for one in state or () if one not in ENDED), None)
    if wrong is not None:
        raise ConfigError(f"--state {wrong}: expected one of {', '.join(ENDED)}")
    with connect(service, certificate) as client:
        found = list(client.jobs(state or ENDED, owner, label, limit))
    columns = ("id", "name", "owner", "state", "submitted", "took", "GPU time", "accuracy", "reason")
    print_jobs(found, columns, "no job is over", json_)


VERB = Verb(history, SERVICE, "rlpto history --state failed --limit 5")
