"""`rlpto export` and `rlpto hub`: a trained agent as one small file, and on a model hub through `huggingface_hub`. Its
environment variables set the address and the token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlpto import __version__
from rlpto.cli.common import EXPERIMENTS, QuietOption, Verb, make_console
from rlpto.io.errors import CheckpointError, ConfigError, RlptoError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

app = typer.Typer(help="Push exported agents to a model hub, and load them (extra `hub`).", no_args_is_help=True)

AGENT_FILE, CARD_FILE = "agent.safetensors", "README.md"
"""Names of the agent and its card in a repository."""
LARGEST_BYTES = 8_000_000
"""Most bytes of a file to load; an exported agent has at most 2,000,000, plus its manifest."""

RepoArgument = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository on the hub.")]


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


@app.command(epilog="Example: rlpto hub push agent.safetensors OWNER/NAME")
def push(
    agent: Annotated[Path, typer.Argument(metavar="FILE", help="Agent that `rlpto export` has written.")],
    repo: RepoArgument,
    private: Annotated[bool, typer.Option("--private", help="Make a private repository if it is not there.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Upload an agent and its card, as agent.safetensors and README.md. The token in HF_TOKEN must allow it.

    The card of `rlpto export --card` in the file's folder is used, which may have been edited, else a new one.
    """
    from rlpto.agents.card import card_of
    from rlpto.io.files import digest, file_there
    from rlpto.io.reading import LARGEST_YAML_BYTES, read_text

    _check(agent)
    text, written = card_of(agent), agent.with_suffix(".md")
    if file_there(written):
        text = read_text(written, "a model card", ConfigError, LARGEST_YAML_BYTES)
        if digest(agent) not in text:
            raise ConfigError(f"{written}: the card of another file, expected that of {agent}: rlpto export --card")
    commit = upload(repo, {AGENT_FILE: agent.read_bytes(), CARD_FILE: text.encode()}, private)
    make_console(quiet).print(f"{repo}: {agent} is there as {AGENT_FILE}, commit {commit}")


@app.command(epilog="Example: rlpto hub load OWNER/NAME -o agent.safetensors")
def load(
    repo: RepoArgument,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="File to write, such as agent.safetensors.")],
    quiet: QuietOption = False,
) -> None:
    """Download an agent; it is put in place if this version can use it. HF_TOKEN opens private repositories."""
    from rlpto.agents.archive import spec_of_file
    from rlpto.io.files import is_there, whole_file

    content, commit = download(repo, AGENT_FILE, LARGEST_BYTES)
    with whole_file(out, "the agent") as unfinished:
        unfinished.write_bytes(content)
        try:
            _check(unfinished)
        except CheckpointError as wrong:
            raise CheckpointError(str(wrong).replace(str(unfinished), f"{repo}: {AGENT_FILE}")) from None
        if is_there(out) and (not out.is_file() or out.read_bytes() != content):
            raise ConfigError(f"{out}: there with other content, expected the name of a new file")
    make_console(quiet).print(f"{out}: {AGENT_FILE} of {repo}, commit {commit}; use it as {spec_of_file(out)}")


def _check(path: Path) -> None:
    """Raise CheckpointError if a file is no exported agent that this version can use."""
    from rlpto.agents.archive import AGENT, NODES
    from rlpto.agents.nodes_agent import NodesAgent
    from rlpto.agents.policy import Agent, AgentOptions
    from rlpto.io.archive import read_archive

    kind = NodesAgent if NODES in read_archive(path, (AGENT,)).manifest else Agent
    kind(AgentOptions(file=path))


def upload(repo: str, files: Mapping[str, bytes], private: bool) -> str:
    """Write files to a repository in one commit, and make the repository if it is missing. Returns the commit's id.

    private: whether reading needs a token. Raises ConfigError if a public one exists, or the hub refuses.
    """
    with _asking(repo) as api:
        from huggingface_hub import CommitOperationAdd

        api.create_repo(repo, private=private or None, exist_ok=True)
        if private and not api.model_info(repo).private:
            raise ConfigError(f"{repo}: a public repository is there, expected a private one; nothing was uploaded")
        added = [CommitOperationAdd(name, content) for name, content in files.items()]
        return str(api.create_commit(repo, added, commit_message=f"Upload with RLPTO {__version__}").oid)


def download(repo: str, name: str, largest: int) -> tuple[bytes, str]:
    """Content of a repository's file, and the id of its commit. largest: largest size [bytes].

    Raises CheckpointError if the file is larger, ConfigError if the hub refuses.
    """
    from tempfile import TemporaryDirectory

    with _asking(repo) as api, TemporaryDirectory() as folder:
        from huggingface_hub import hf_hub_url

        found = api.get_hf_file_metadata(url=hf_hub_url(repo, name))
        if found.size is None or found.size > largest:
            raise CheckpointError(f"{repo}: {name} has {found.size} bytes, expected at most {largest}")
        # From the same commit, without the user's cache, which would hide that a hub does not answer.
        file = api.hf_hub_download(repo, name, revision=found.commit_hash, local_dir=folder)
        return Path(file).read_bytes(), str(found.commit_hash)


@contextmanager
def _asking(repo: str) -> Iterator[HfApi]:
    """A client without output of its own. Every failure becomes an error of RLPTO."""
    import logging

    from huggingface_hub import HfApi, errors
    from huggingface_hub.utils.tqdm import disable_progress_bars

    from rlpto.io.reading import one_line

    if repo.count("/") != 1:
        raise ConfigError(f"{repo}: expected a repository as OWNER/NAME")
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # hides retries
    disable_progress_bars()
    try:
        yield HfApi(library_name="rlpto", library_version=__version__)
    except RlptoError:
        raise
    except errors.HFValidationError as wrong:
        raise ConfigError(f"{repo}: {one_line(wrong)}, expected a repository as OWNER/NAME") from None
    except errors.HfHubHTTPError as refused:
        raise ConfigError(f"{repo}: {_reason(refused)}") from None
    except Exception as failed:  # from the HTTP client, whose classes differ between versions, or the hub's storage
        here = isinstance(failed, OSError) and not isinstance(failed, ConnectionError)
        what = "a file here cannot be read or written" if here else "the hub gave no answer"
        raise ConfigError(f"{repo}: {what} ({one_line(failed)})") from None


def _reason(refused: Any) -> str:
    """Reason why a hub refuses, by the code of its answer."""
    from rlpto.io.reading import one_line

    code, error = refused.response.status_code, refused.response.headers.get("X-Error-Code")
    if error == "EntryNotFound":
        return "no agent is there, expected a repository that `rlpto hub push` has written"
    if error == "RepoNotFound" or code == 404:
        return "no such repository, or a private one that the token in HF_TOKEN may not read"
    if code in (401, 403):
        return f"not authorised ({code}), expected a token in HF_TOKEN that may do this"
    return f"the hub refused ({code}): {one_line(refused.server_message or refused)}"


VERBS = {
    "export": Verb(export, EXPERIMENTS, "rlpto export runs/philly -o philly.safetensors --card"),
    "hub": Verb(app, EXPERIMENTS),
}
