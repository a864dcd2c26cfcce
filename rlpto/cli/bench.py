"""`rlpto bench`: frozen cases, submissions, the leaderboard."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rlpto.cli.common import BENCHMARK, QuietOption, Verb, WorkersOption, chosen_workers, make_console, make_table
from rlpto.io.errors import ConfigError
from rlpto.io.terminal import say

app = typer.Typer(help="Run policies on frozen cases, and check and rank submissions.", no_args_is_help=True)


@app.command("list", epilog="Example: rlpto bench list")
def list_cases() -> None:
    """List the cases."""
    from rlpto.bench.suite import cases

    table = make_table("case", "knows", "jobs ship", "digest")
    for case in cases():
        table.add_row(case.id, case.division, "yes" if case.ships else "built", case.digest)
    make_console().print(table)


@app.command(epilog="Example: rlpto bench config microsoft04-0.9 > mine.yaml")
def config(case: Annotated[str, typer.Argument(metavar="CASE", help="A case, see `rlpto bench list`.")]) -> None:
    """Print an experiment with the training and validation windows of a case, for `rlpto train`."""
    from rlpto.bench.suite import find_case
    from rlpto.experiments.config import resolved_yaml

    print(resolved_yaml(find_case(case).training()), end="")


JobsOption = Annotated[int, typer.Option("--jobs", "-j", min=1, help="Processes.")]
ALL = "all"
"""In place of a policy: every policy of the board."""
BOARD, RUNS = Path("submissions"), Path("runs/bench")


@app.command(epilog="Example: rlpto bench run fifo --case microsoft04-0.9")
def run(
    policies: Annotated[
        list[str],
        typer.Argument(
            metavar="POLICY",
            help="Name, FILE.py:Class, or seeds of one training. all: the policies of all folders in submissions, or, "
            "if it is not there, all of RLPTO's own that need no options.",
        ),
    ],
    case: Annotated[
        list[str] | None,
        typer.Option(
            "--case",
            help="A case, or a division: realistic, history, transfer, rigid, converging, rented, exact; may be "
            "repeated. Default: all that count. A policy with a provisioner, as in index@average, runs on rented only.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name on the leaderboard; that of the policy if not given.")] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir",
            metavar="FOLDER",
            help="The submission; runs/bench/NAME if not given. all: folder of the submissions.",
        ),
    ] = None,
    jobs: JobsOption = 1,
    workers: WorkersOption = None,
    quiet: QuietOption = False,
) -> None:
    """Run policies on cases and write submissions: card.yaml, results.csv, the policy's files. May be interrupted."""
    from rlpto.bench.results import Scores
    from rlpto.bench.submissions import board, new_card, run_all
    from rlpto.bench.suite import DIVISIONS, cases, find_case
    from rlpto.policies.spec import parse_spec

    divisions = {text: [one for one in cases() if one.counts and one.division == text] for text in DIVISIONS}
    wanted = [one for text in case or divisions for one in divisions.get(text) or [find_case(text)]]
    unique = list({one.id: one for one in wanted}.values())
    if ALL in policies:
        if len(policies) > 1 or name is not None:
            raise ConfigError("all: every policy of the board, expected no other policy and no --name")
        cards = board(BOARD, run_dir or RUNS)
    else:
        first = parse_spec(policies[0]).first
        called = name or first.kind or first.name
        cards = [(new_card(called, policies), run_dir or RUNS / called)]
    with chosen_workers(workers, jobs) as place:
        rows = run_all(cards, unique, place, lambda text: _say(text, quiet), progress=not quiet and sys.stderr.isatty())
    console, folder = make_console(quiet), cards[0][1]
    if len(cards) > 1:
        console.print(f"{len(cards)} submissions: rlpto bench table {folder.parent}")
        return
    table = make_table("case", "score")
    for division in DIVISIONS:
        scores = Scores(rows[0], division)
        for one, score in scores.by_case().items():
            table.add_row(one, f"{score:.1f}")
        if scores.cases and not scores.missing:
            table.add_row(f"[bold]{division}[/]", "[bold]{:.1f} [{:.1f}, {:.1f}][/]".format(*scores.interval))
    console.print(table)
    console.print(
        f"{folder}: 0 is fifo, 100 the lower bound of mean JCT or cost. With others: rlpto bench table {folder.parent}"
    )


@app.command(epilog="Example: rlpto bench verify submissions/planner")
def verify(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER", help="Folders of submissions.")],
    share: Annotated[
        float, typer.Option(min=0.001, max=1.0, help="Share of the cells to run again, chosen by chance.")
    ] = 1.0,
    jobs: JobsOption = 1,
    workers: WorkersOption = None,
) -> None:
    """Check submissions: run all cells again, or a share of them, and compare every digit."""
    from rlpto.bench.submissions import verify as problems_of
    from rlpto.io.errors import ClusterError, RlptoError

    wrong, part = 0, "all" if share == 1 else f"{share:.1%} of the"
    with chosen_workers(workers, jobs) as place:
        for folder in folders:
            _say(f"running {part} cells of {folder} again", quiet=False)
            try:
                found = list(problems_of(folder, share, workers=place))
            except ClusterError:
                raise
            except RlptoError as error:
                found = [str(error)]
            for line in found:
                say(f"{folder}: {line}")
            if not found:
                say(f"{folder}: verified" if share == 1 else f"{folder}: no fault in {part} cells")
            wrong += bool(found)
    if wrong:
        raise ConfigError(f"{wrong} of {len(folders)} submissions are wrong")


@app.command(epilog="Example: rlpto bench table submissions -o docs/leaderboard.md")
def table(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER", help="Submissions, or folders with them.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write the page there.")] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the scores, as a PNG file.")] = None,
) -> None:
    """Rank submissions, on one page; incomplete ones appear only in the scores by case."""
    from rlpto.bench import leaderboard
    from rlpto.io.files import write_text

    divisions, left_out = leaderboard.entries_of(folders)
    for line in left_out:
        say(f"rlpto: {line}", err=True)
    if not any(divisions.values()):
        raise ConfigError("no submission can be ranked; the lines above say why")
    text = leaderboard.page(divisions)
    if out is None:
        say(text, end="")
    else:
        write_text(out, text, "the leaderboard")
    if plot is not None:
        leaderboard.plot(divisions, plot)


@app.command(epilog="Example: rlpto bench dataset microsoft04-0.9-exact --policy planner")
def dataset(
    case: Annotated[str, typer.Argument(metavar="CASE", help="A case, see `rlpto bench list`.")],
    policy: Annotated[str, typer.Option(help="planner, or the index with any weights.")] = "planner",
    name: Annotated[str | None, typer.Option(help="Name of the data set; rlpto/CASE-POLICY-v1 if not given.")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Episodes, each a stretch of a training window.")] = 20,
    quiet: QuietOption = False,
) -> None:
    """Record a policy in the environment of a case, as an offline data set of Minari.

    Actions beyond the limits of the environment are cut to them.
    """
    from rlpto.bench.dataset import record
    from rlpto.policies.spec import parse_spec

    called = name or f"rlpto/{case.replace('.', '_')}-{parse_spec(policy).first.name}-v1"
    steps, cut = record(case, policy, called, episodes, progress=not quiet)
    make_console(quiet).print(
        f"{called}: {episodes} episodes, {steps} steps, {cut:.0%} of them cut to the limits of actions; "
        f"minari.load_dataset({called!r}) reads it"
    )


@app.command(epilog="Example: rlpto bench build philly-0.9")
def build(
    names: Annotated[list[str], typer.Argument(metavar="JOBS", help="Cases, whose jobs are drawn.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Folder; runs/bench/jobs if not given.")] = None,
    unchecked: Annotated[bool, typer.Option(hidden=True, help="For a new version: print digests.")] = False,
) -> None:
    """Draw the jobs of cases that do not ship, from public files, and check that they match the suite's digests."""
    from rlpto.bench.suite import BUILT, digests, find_case
    from rlpto.workloads.frozen import digest_of, write_jobs

    for name in names:
        case = find_case(name)
        jobs = case.draw()
        digest = digest_of(jobs)
        if not unchecked and digest != digests().get(case.jobs):
            raise ConfigError(
                f"case {name}: other jobs than those of the suite were drawn; expected the published file"
            )
        write_jobs(jobs, (out or BUILT) / f"{case.jobs}.parquet")
        print(f"{case.jobs}: {digest}")


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        say(f"rlpto: {text}", err=True)


VERB = Verb(app, BENCHMARK, "rlpto bench run fifo --case microsoft04-0.9")
