"""`rlpto export` and `rlpto hub`: a trained agent as one small file, and on a hub of models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlpto.cli.common import EXPERIMENTS, QuietOption, Verb, make_console
from rlpto.io.errors import CheckpointError, ConfigError

app = typer.Typer(help="Push exported agents to a model hub, and load them (extra `hub`).", no_args_is_help=True)

AGENT_FILE, CARD_FILE = "agent.zip", "README.md"
"""Their names in a repository."""
LARGEST_BYTES = 8_000_000
"""Bytes of a file that is loaded; an exported agent has at most 2,000,000, and its manifest."""

RepoArgument = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub.")]


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
    from rlpto.agents.card import card_of, check_target
    from rlpto.agents.checkpoint import export_agent
    from rlpto.agents.policy import run_file
    from rlpto.io.files import file_there, write_text

    if scores is not None and not card:
        raise ConfigError("--scores: the scores stand in the card, expected --card too")
    if card and out.suffix == ".md":
        raise ConfigError(f"{out}: the name of the card, expected another one for the agent, such as agent.zip")
    if card:
        check_target(out.with_suffix(".md"))
    checkpoint = run if file_there(run) else run_file(run)
    known: list[str] = []
    if scores is not None:
        from rlpto.bench.leaderboard import agent_scores

        known = agent_scores(scores, checkpoint)
    size, state = export_agent(checkpoint, out)
    if card:
        write_text(out.with_suffix(".md"), card_of(out, known), "the model card")
    make_console(quiet).print(f"{out}: {size / 1000:.0f} kB from {checkpoint} ({state}); use it as agent:file={out}")


@app.command(epilog="Example: rlpto hub push agent.zip OWNER/NAME")
def push(
    agent: Annotated[Path, typer.Argument(metavar="FILE", help="Agent that `rlpto export` has written.")],
    repo: RepoArgument,
    private: Annotated[bool, typer.Option("--private", help="Make a private repository if it is not there.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Upload an agent and its card, as agent.zip and README.md. The token in HF_TOKEN must allow it.

    The card is that of `rlpto export --card` next to the file, which may have been edited, else a new one.
    """
    from rlpto.agents.card import card_of
    from rlpto.io.files import digest, file_there
    from rlpto.io.hub import upload
    from rlpto.io.reading import LARGEST_YAML_BYTES, read_text

    _check(agent)
    text, written = card_of(agent), agent.with_suffix(".md")
    if file_there(written):
        text = read_text(written, "a model card", ConfigError, LARGEST_YAML_BYTES)
        if digest(agent) not in text:
            raise ConfigError(f"{written}: the card of another file, expected that of {agent}: rlpto export --card")
    commit = upload(repo, {AGENT_FILE: agent.read_bytes(), CARD_FILE: text.encode()}, private)
    make_console(quiet).print(f"{repo}: {agent} is there as {AGENT_FILE}, commit {commit}")


@app.command(epilog="Example: rlpto hub load OWNER/NAME -o agent.zip")
def load(
    repo: RepoArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write, such as agent.zip.")],
    quiet: QuietOption = False,
) -> None:
    """Download an agent; it is put in place if this version can use it. HF_TOKEN opens private repositories."""
    from rlpto.io.files import is_there, whole_file
    from rlpto.io.hub import download

    content, commit = download(repo, AGENT_FILE, LARGEST_BYTES)
    with whole_file(out, "the agent") as unfinished:
        unfinished.write_bytes(content)
        try:
            _check(unfinished)
        except CheckpointError as wrong:
            raise CheckpointError(str(wrong).replace(str(unfinished), f"{repo}: {AGENT_FILE}")) from None
        if is_there(out) and (not out.is_file() or out.read_bytes() != content):
            raise ConfigError(f"{out}: there with other content, expected the name of a new file")
    make_console(quiet).print(f"{out}: {AGENT_FILE} of {repo}, commit {commit}; use it as agent:file={out}")


def _check(path: Path) -> None:
    """Raise CheckpointError if a file is no exported agent that this version can use."""
    from rlpto.agents.archive import AGENT, read_archive
    from rlpto.agents.policy import Agent, AgentOptions

    read_archive(path, (AGENT,))
    Agent(AgentOptions(file=path))


VERBS = {
    "export": Verb(export, EXPERIMENTS, "rlpto export runs/philly -o philly.zip --card"),
    "hub": Verb(app, EXPERIMENTS),
}
