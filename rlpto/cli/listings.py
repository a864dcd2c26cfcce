"""`rlpto configs` and `rlpto policies`: lists of examples and of policies."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rlpto.cli.common import EXPERIMENTS, ConfigArgument, SetOption, Verb, make_console, make_table, read_config

app = typer.Typer(help="List experiment files, and show one with every key explained.", no_args_is_help=True)


@app.command("list", epilog="Example: rlpto configs list")
def list_configs() -> None:
    """List the examples, whose names work in any folder: experiment files, weights, agents and traces."""
    from rich.markup import escape

    from rlpto.experiments.config import load_config
    from rlpto.io.paths import example_names, trace_names

    table = make_table("config", "workload")
    for name in (*example_names(), *example_names("results")):
        table.add_row(escape(name), escape(load_config(name).description))
    console = make_console()
    console.print(table)
    weights, agents = example_names("tuned"), example_names("pretrained", ".safetensors")
    console.print(f"\n[bold]weights[/] for index:weights=NAME.yaml: {', '.join(weights)}", markup=True)
    console.print(f"[bold]agents[/] for agent:file=NAME.safetensors: {', '.join(agents)}", markup=True)
    console.print(f"[bold]traces[/] for workload.path=NAME: {', '.join(trace_names())}", markup=True)


@app.command(epilog="Example: rlpto configs show philly --set simulator.interval=30")
def show(config: ConfigArgument, set_: SetOption = None) -> None:
    """Print an experiment file with all defaults filled in and every key explained."""
    from rlpto.experiments.config import resolved_yaml

    text = resolved_yaml(read_config(config, set_))
    if sys.stdout.isatty():
        from rich.syntax import Syntax

        make_console().print(Syntax(text, "yaml", background_color="default", word_wrap=True))
    else:
        sys.stdout.write(text)


def policies(
    options: Annotated[bool, typer.Option("--options", help="Also explain the options of each policy.")] = False,
) -> None:
    """List policies with their sources; an option is set as in `las:levels=[3600,36000]`."""
    from rich.markup import escape

    from rlpto.policies.registry import available, options_of
    from rlpto.provisioning.registry import BUILT_IN

    table = make_table()
    table.add_column("policy", no_wrap=True)
    table.add_column("what it does", ratio=5)
    table.add_column("source", ratio=3)
    table.add_column("options", ratio=2)
    console = make_console()
    broken = list[str]()
    found = available(broken.append)
    for name, policy in found.items():
        names = ", ".join(option for option, _, _ in options_of(policy))
        table.add_row(escape(name), escape(policy.summary), escape(policy.source), escape(names))
    console.print(table)
    console.print(
        "\n[bold]lower bound[/] is a row of every result: each job alone on the cluster at its fastest.\n"
        "[bold]POLICY@PROVISIONER[/] rents nodes where the config says so (rlpto configs show rented):",
        markup=True,
    )
    for name, provisioner in BUILT_IN.items():
        console.print(f"  {name}: {provisioner.summary}")
    for problem in broken:
        console.print(f"[red]left out:[/] {escape(problem)}", soft_wrap=True, markup=True)
    if not options:
        return
    for name, policy in found.items():
        for option, default, meaning in options_of(policy):
            console.print(f"\n[bold]{escape(name)}:{escape(option)}[/]={escape(default)}", markup=True)
            console.print(f"  {meaning}")


VERBS = {"configs": Verb(app, EXPERIMENTS), "policies": Verb(policies, EXPERIMENTS, "rlpto policies --options")}
