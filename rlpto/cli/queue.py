"""`rlpto queue`: jobs that wait for GPUs, why, and until when."""

from __future__ import annotations

from typing import Annotated

import typer

from rlpto.cli.common import SERVICE, Verb, make_console
from rlpto.cli.remote import (
    CertificateOption,
    JsonOption,
    ServiceOption,
    connect,
    in_text,
    print_json,
    print_rows,
)


def queue(
    start: Annotated[bool, typer.Option("--start", help="Also show when jobs will probably start and finish.")] = False,
    service: ServiceOption = None,
    certificate: CertificateOption = None,
    json_: JsonOption = False,
) -> None:
    """Show waiting jobs in order of service; for other users' jobs only the place."""
    with connect(service, certificate) as client:
        found = client.queue()
    if json_:
        print_json(found)
        return
    rows = []
    for entry in found:
        said = entry["prediction"] or {}
        times = (in_text(said.get("start")), in_text(said.get("finish"))) if start else ()
        ahead = (str(entry["position"]), entry["job"] or "(another user's)", entry["name"] or "", entry["owner"] or "")
        rows.append((*ahead, str(entry["gpus"] or ""), str(entry["gpus_ahead"]), *times, entry["reason"]))
    expected = ("starts", "ends") if start else ()
    print_rows(("place", "id", "name", "owner", "GPUs", "ahead", *expected, "reason"), rows, "no jobs wait")
    if start and rows:
        said = "Starts and ends are simulated under the present policy, without jobs still to come."
        make_console().print(said, style="dim")


VERB = Verb(queue, SERVICE, "rlpto queue --start")
