"""`rlpto export`: a trained agent as one small file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlpto.cli.common import EXPERIMENTS, QuietOption, Verb, make_console
from rlpto.io.errors import ConfigError

if TYPE_CHECKING:
    from rlpto.agents.card import Benchmarked


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `rlpto train` has written, or a checkpoint.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write, such as agent.zip.")],
    card: Annotated[bool, typer.Option("--card", help="Write a model card next to it: agent.md.")] = False,
    scores: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="For the card: a submission of this agent, by `rlpto bench run`."),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Write the best agent of a run to one file, with its settings and its origin; --card: what is known of it."""
    from rlpto.agents.card import card_of
    from rlpto.agents.checkpoint import export_agent
    from rlpto.agents.policy import run_file
    from rlpto.io.files import file_there, write_text

    if scores is not None and not card:
        raise ConfigError("--scores: the scores stand in the card, expected --card too")
    checkpoint = run if file_there(run) else run_file(run)
    results = None if scores is None else _benchmarked(scores, checkpoint)
    size, state = export_agent(checkpoint, out)
    if card:
        write_text(out.with_suffix(".md"), card_of(out, results), "the model card")
    make_console(quiet).print(f"{out}: {size / 1000:.0f} kB from {checkpoint} ({state}); use it as agent:file={out}")


def _benchmarked(folder: Path, agent: Path) -> Benchmarked:
    """What a submission scores. Raises ConfigError or CheckpointError if it is wrong, or of another agent."""
    from rlpto.agents.archive import KINDS, read_archive
    from rlpto.agents.card import Benchmarked
    from rlpto.agents.policy import Agent
    from rlpto.bench.results import Scores, checked, read_rows
    from rlpto.bench.submissions import RESULTS, read_card, runnable
    from rlpto.bench.suite import EXACT, REALISTIC
    from rlpto.policies.registry import make_policy

    submitted = read_card(folder)
    policies = [make_policy(runnable(spec, folder)) for spec in submitted.policies]
    files = [policy.options.checkpoint() for policy in policies if isinstance(policy, Agent)]
    same = [read_archive(file, KINDS).deciding == read_archive(agent, KINDS).deciding for file in files]
    if len(files) < len(policies) or not any(same):
        raise ConfigError(f"{folder}: a submission of {', '.join(submitted.policies)}; expected one of {agent}")
    rows, wrong = checked(read_rows(folder / RESULTS), submitted.policies)
    if wrong:
        raise ConfigError(f"{folder}: {'; '.join(wrong)}")
    found = {division: Scores(rows, division) for division in (REALISTIC, EXACT)}
    return Benchmarked(
        submitted.suite,
        submitted.policies,
        submitted.training_cpu_s,
        {division: one.interval for division, one in found.items() if one.cases and not one.missing},
        {division: one.by_case() for division, one in found.items() if one.cases},
    )


VERB = Verb(export, EXPERIMENTS, "rlpto export runs/philly -o philly.zip --card")
