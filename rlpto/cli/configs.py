"""`rlpto configs`: what experiment files there are, and what one of them means in full."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rlpto.cli.common import LISTS, ConfigArgument, SetOption, Verb, make_console, read_config
from rlpto.errors import ConfigError

app = typer.Typer(help="List experiment files, and show one with every key explained.", no_args_is_help=True)


@app.command("list", epilog="Example: rlpto configs list configs")
def list_configs(
    folder: Annotated[Path, typer.Argument(help="Folder with experiment files.")] = Path("configs"),
) -> None:
    """List the experiment files of a folder."""
    from rich.markup import escape
    from rich.table import Table

    from rlpto.config import load_config

    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder, expected one with experiment files (*.yaml)")
    table = Table("file", "name", "description", box=None, header_style="bold", pad_edge=False)
    for path in sorted(folder.glob("*.yaml")):
        try:
            config = load_config(path)
            table.add_row(escape(str(path)), escape(config.name), escape(config.description))
        except ConfigError as error:
            table.add_row(escape(str(path)), "", f"[red]{escape(str(error))}[/]")
    make_console().print(table)


@app.command(epilog="Example: rlpto configs show configs/philly.yaml --set simulator.interval=30")
def show(config: ConfigArgument, set_: SetOption = None) -> None:
    """Print an experiment file with all defaults filled in and every key explained."""
    from rlpto.config import resolved_yaml

    text = resolved_yaml(read_config(config, set_))
    if sys.stdout.isatty():
        from rich.syntax import Syntax

        make_console().print(Syntax(text, "yaml", background_color="default", word_wrap=True))
    else:
        sys.stdout.write(text)


VERB = Verb(app, LISTS)
