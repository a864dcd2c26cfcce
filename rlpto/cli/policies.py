"""`rlpto policies`: the policies to evaluate, with their sources."""

from __future__ import annotations

from typing import Annotated

import typer

from rlpto.cli.common import LISTS, Verb, make_console, make_table


def policies(
    options: Annotated[bool, typer.Option("--options", help="Also explain the options of each policy.")] = False,
) -> None:
    """List policies with their sources; an option is set as in `las:levels=[3600,36000]`."""
    from rich.markup import escape

    from rlpto.policies.registry import available, options_of

    table = make_table()
    table.add_column("policy", no_wrap=True)
    table.add_column("what it does", ratio=5)
    table.add_column("source", ratio=3)
    table.add_column("options", ratio=2)
    console = make_console()
    found = available()
    for name, policy in found.items():
        names = ", ".join(option for option, _, _ in options_of(policy))
        table.add_row(escape(name), escape(policy.summary), escape(policy.source), escape(names))
    console.print(table)
    console.print("\n[bold]lower bound[/] is a row of every result: each job alone on the cluster at its fastest.")
    if not options:
        return
    for name, policy in found.items():
        for option, default, meaning in options_of(policy):
            console.print(f"\n[bold]{escape(name)}:{escape(option)}[/]={escape(default)}")
            console.print(f"  {escape(meaning)}")


VERB = Verb(policies, LISTS, "rlpto policies --options")
