"""`rlpto export`: a trained agent as one small file, with its model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlpto.cli.common import EXPERIMENTS, QuietOption, Verb, make_console
from rlpto.io.errors import ConfigError


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `rlpto train` has written, or a checkpoint.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write, such as agent.safetensors.")],
    card: Annotated[bool, typer.Option("--card", help="Write a model card next to it: agent.md.")] = False,
    scores: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="For the card: a submission of this agent, by `rlpto bench run`."),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Write the best agent of a run to one file, with its settings and its origin; --card describes it in Markdown."""
    from rlpto.agents.archive import spec_of_file
    from rlpto.agents.card import card_of, check_target
    from rlpto.agents.checkpoint import export_agent
    from rlpto.agents.policy import run_file
    from rlpto.agents.settings import BEST, LAST
    from rlpto.io.files import file_there, is_there, write_text

    if scores is not None and not card:
        raise ConfigError("--scores: the scores stand in the card, expected --card too")
    if not out.name:
        raise ConfigError(f"--out {out}: expected the name of a file, such as agent.safetensors")
    if card and out.suffix == ".md":
        raise ConfigError(f"{out}: the name of the card, expected another one for the agent, such as agent.safetensors")
    if card:
        check_target(out.with_suffix(".md"))
    checkpoint = run if file_there(run) else run_file(run)
    if out.name in (BEST, LAST) and is_there(out):
        raise ConfigError(f"--out {out}: a checkpoint of a run, expected the name of another file")
    known: list[str] = []
    if scores is not None:
        from rlpto.bench.leaderboard import agent_scores

        known = agent_scores(scores, checkpoint)
    size, state = export_agent(checkpoint, out)
    if card:
        write_text(out.with_suffix(".md"), card_of(out, known), "the model card")
    make_console(quiet).print(f"{out}: {size / 1000:.0f} kB from {checkpoint} ({state}); use it as {spec_of_file(out)}")


VERBS = {
    "export": Verb(export, EXPERIMENTS, "rlpto export runs/philly -o philly.safetensors --card"),
}
