"""`rlpto configs`: list experiment files, and show one of them in full."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rlpto.cli.common import LISTS, ConfigArgument, SetOption, Verb, make_console, make_table, read_config
from rlpto.io.errors import ConfigError
from rlpto.io.files import folder_there

app = typer.Typer(help="List experiment files, and show one with every key explained.", no_args_is_help=True)


@app.command("list", epilog="Example: rlpto configs list")
def list_configs(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder with experiment files, instead of the examples of RLPTO.")
    ] = None,
) -> None:
    """List experiment files: the examples, which go by their names anywhere, or those of a folder."""
    from rich.markup import escape

    from rlpto.experiments.config import load_config
    from rlpto.io.paths import example_names

    if folder is not None and not folder_there(folder):
        raise ConfigError(f"{folder}: no such folder, expected one with experiment files (*.yaml)")
    names = [*example_names(), *example_names("results")] if folder is None else sorted(map(str, folder.glob("*.yaml")))
    table = make_table("example" if folder is None else "file", "name", "description")
    for name in names:
        try:
            config = load_config(name)
            table.add_row(escape(name), escape(config.name), escape(config.description))
        except ConfigError as error:
            table.add_row(escape(name), "", f"[red]{escape(str(error))}[/]")
    console = make_console()
    console.print(table)
    if folder is None:
        weights, agents = example_names("tuned"), example_names("pretrained", ".zip")
        console.print(f"\n[bold]weights[/] for index:weights=NAME.yaml: {', '.join(weights)}")
        console.print(f"[bold]agents[/] for agent:file=NAME.zip: {', '.join(agents)}")


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


VERB = Verb(app, LISTS)
