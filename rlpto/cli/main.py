"""The `rlpto` command. Verbs import what they need when they run, so that `--help` is quick."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rlpto import __version__
from rlpto.cli.cluster import app as cluster
from rlpto.cli.compare import compare
from rlpto.cli.configs import app as configs
from rlpto.cli.evaluate import evaluate
from rlpto.cli.export import export
from rlpto.cli.forecast import app as forecast
from rlpto.cli.policies import policies
from rlpto.cli.profile import profile
from rlpto.cli.profiles import app as profiles
from rlpto.cli.sweep import sweep
from rlpto.cli.trace import app as trace
from rlpto.cli.train import train
from rlpto.cli.tune import app as tune
from rlpto.errors import RlptoError
from rlpto.interrupts import interrupts_kept

BAD_INPUT = 2
"""Exit code when the user's input is at fault."""

app = typer.Typer(
    name="rlpto",
    help="Schedule distributed deep-learning training: policies, workloads, and how well they go together.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train", epilog="Example: rlpto train configs/quickstart.yaml --seeds 3")(train)
app.command("evaluate", epilog="Example: rlpto evaluate configs/quickstart.yaml --policies fifo,las,index")(evaluate)
app.command("compare", epilog="Example: rlpto compare runs/quickstart runs/noisy")(compare)
app.command("export", epilog="Example: rlpto export runs/philly -o philly.zip")(export)
app.command("sweep", epilog="Example: rlpto sweep configs/quickstart.yaml --space space.yaml --trials 20")(sweep)
app.add_typer(cluster, name="cluster")
app.add_typer(forecast, name="forecast")
app.add_typer(trace, name="trace")
app.command("profile", epilog="Example: rlpto profile configs/ray.yaml -o profiles/here.yaml")(profile)
app.add_typer(profiles, name="profiles")
app.add_typer(tune, name="tune")
app.command("policies", epilog="Example: rlpto policies --options")(policies)
app.add_typer(configs, name="configs")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"rlpto {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Schedule distributed deep-learning training: policies, workloads, and how well they go together."""


def run() -> None:
    """Entry point: bad input ends with exit code 2 and one line on stderr; Ctrl-C is heard wherever it comes."""
    try:
        with interrupts_kept():
            app()
    except RlptoError as error:
        print(f"rlpto: error: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)


if __name__ == "__main__":
    run()
