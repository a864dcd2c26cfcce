"""`rlpto export`: a trained agent as one small file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlpto.cli.common import EXPERIMENTS, QuietOption, Verb, make_console


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `rlpto train` has written, or a checkpoint.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write, such as agent.zip.")],
    quiet: QuietOption = False,
) -> None:
    """Write the best agent of a run to one file, with its settings and its origin."""
    from rlpto.agents.checkpoint import export_agent
    from rlpto.agents.policy import run_file
    from rlpto.io.files import file_there

    checkpoint = run if file_there(run) else run_file(run)
    size, state = export_agent(checkpoint, out)
    make_console(quiet).print(f"{out}: {size / 1000:.0f} kB from {checkpoint} ({state}); use it as agent:file={out}")


VERB = Verb(export, EXPERIMENTS, "rlpto export runs/philly -o philly.zip")
