"""`rlpto policy`: the policy that the service currently uses."""

from __future__ import annotations

from typing import Annotated

import typer

from rlpto.cli.common import SERVICE, Verb, make_console
from rlpto.cli.remote import CertificateOption, JsonOption, ServiceOption, clock_text, connect, print_json
from rlpto.cli.waiting import waiting

app = typer.Typer(help="Show and switch the policy of the service.", no_args_is_help=True)


@app.command("show", epilog="Example: rlpto policy show")
def show(service: ServiceOption = None, certificate: CertificateOption = None, json_: JsonOption = False) -> None:
    """Show which policy decides, since when, and why."""
    with connect(service, certificate) as client:
        found = client.policy()
    if json_:
        print_json([found])
        return
    if found["policy"] is None:
        make_console().print("the scheduler has not started yet")
        return
    why = f" ({found['reason']})" if found["reason"] else ""
    text = f"{found['policy']} decides since {clock_text(found['since'])}, by {found['by']}{why}"
    make_console().print(text, markup=False)
    if found["preparing"] is not None:
        text = f"{found['preparing']} is being made ready since {clock_text(found['preparing_since'])}"
        make_console().print(text, markup=False)


@app.command("switch", epilog='Example: rlpto policy switch elastic_fifo --reason "many short jobs"')
def switch(
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="One that the service knows.")],
    reason: Annotated[str, typer.Option(help="Why, for the audit trail.")] = "",
    service: ServiceOption = None,
    certificate: CertificateOption = None,
) -> None:
    """Let another policy decide from the next decision on; running processes are not touched."""
    with connect(service, certificate) as client, waiting() as doing:
        before = client.policy()["policy"]
        doing(f"making {policy} ready, which may take minutes the first time; {before} decides meanwhile")
        found = client.switch(policy, reason)
    make_console().print(f"{found['policy']} decides now (switch {found['number']})")


VERB = Verb(app, SERVICE)
