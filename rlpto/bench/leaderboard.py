"""The leaderboard: all submissions of a folder, by division, as one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rlpto.agents.archive import FORMATS, deciding
from rlpto.agents.nodes_agent import NodesAgent
from rlpto.agents.policy import Agent
from rlpto.bench.results import RESAMPLES, Scores, between, checked, read_rows
from rlpto.bench.submissions import CARD, RESULTS, Card, allocating, read_card, runnable
from rlpto.bench.suite import CONVERGING, EXACT, HISTORY, REALISTIC, RENTED, RIGID, TRANSFER, VERSION, cases
from rlpto.evaluation.plots import COLOURS, INK, empty_figure, png
from rlpto.io.archive import read_archive
from rlpto.io.errors import ConfigError, RlptoError
from rlpto.io.files import whole_file
from rlpto.io.markdown import markdown_table
from rlpto.policies.spec import parse_spec
from rlpto.provisioning.registry import make_provisioner

HEADINGS = {
    REALISTIC: "What a real scheduler knows",
    HISTORY: "What a scheduler with history knows",
    TRANSFER: "Clusters that nothing was tuned on",
    RIGID: "Jobs that keep their size",
    CONVERGING: "Accuracy counts",
    RENTED: "Rented nodes",
    EXACT: "An oracle's knowledge",
}
ABOUT = {
    REALISTIC: "Speeds that jobs have shown, shared among jobs of a model; lengths of finished jobs of the same user.",
    HISTORY: "The same, and lengths of all jobs of the trace that had finished before the window. Users, with their "
    "models, last for the whole trace.",
    TRANSFER: "As with history, on other clusters of Microsoft's, on which no policy may be trained or tuned.",
    RIGID: "As with history. All jobs, or the jobs of half of the users, hold exactly the GPUs that they request.",
    CONVERGING: "As with history. The cost is scored: of GPUs, and of hours of jobs, which cost up to 25 times as much "
    "while a job lacks accuracy.",
    RENTED: "As with history. The cost is scored: of hours of jobs, and of nodes that are rented by the minute. Half "
    "of the jobs keep their size. A policy may name a provisioner.",
    EXACT: "True speeds and true remaining work.",
}


IN_LINE = 4
"""Divisions next to one another in the plot."""


@dataclass(frozen=True)
class Entry:
    """A submission and its scores in a division."""

    card: Card
    scores: Scores

    @property
    def ranked(self) -> bool:
        """Whether it has all cases that count in the division."""
        return not self.scores.missing

    def cells(self, first: Entry, rank: str) -> dict[str, str]:
        """Its row of the table, with its rank and its paired difference from the first entry."""
        score, low, high = self.scores.interval
        behind, mean = self.scores.drawn - first.scores.drawn, self.scores.mean
        paired = "{:+.1f} [{:+.1f}, {:+.1f}]".format(score - first.scores.interval[0], *between(behind))
        return {
            "rank": rank,
            "policy": self.card.name + (f" ({seeds} seeds)" if (seeds := len(self.card.policies)) > 1 else ""),
            "score": f"{score:.1f} [{low:.1f}, {high:.1f}]",
            "to the first (paired)": "" if self is first else paired,
            **({"cost (fifo: 1)": f"{self.scores.cost:.3f}"} if self.scores.cost is not None else {}),
            "mean JCT [h]": f"{mean('jct') / 3600:.2f}",
            "p95 [h]": f"{mean('p95') / 3600:.2f}",
            "rho": f"{mean('rho'):.2f}",
            "GPU-hours": f"{mean('gpu_hours'):.0f}",
            "rescales": f"{mean('rescales'):.1f}",
            "unfinished": f"{mean('unfinished'):.1f}",
            "CPU-ms a decision": f"{self.scores.cpu_ms:.1f}",
            "training CPU-s": f"{self.card.training_cpu_s:.0f}",
            "tuned on": self.card.tuned_on,
        }


def entries_of(folders: Sequence[Path]) -> tuple[dict[str, list[Entry]], list[str]]:
    """Entries by division, best first and incomplete ones last, and a line on each invalid submission.

    folders: submissions, or folders with submissions. Raises ConfigError if a folder has none.
    """
    found: dict[str, list[Entry]] = {division: [] for division in HEADINGS}
    left_out, names = [], set[str]()
    for path in [path for folder in folders for path in _submissions(folder)]:
        try:
            card = read_card(path)
            rows, wrong = checked(read_rows(path / RESULTS), card.policies)
        except RlptoError as error:
            left_out.append(str(error))
            continue
        if card.name in names:
            wrong = [*wrong, f"{path}: another submission has this name"]
        if wrong:
            left_out.append(f"{card.name}: not ranked: {'; '.join(wrong)}")
            continue
        names.add(card.name)
        for division, entries in found.items():
            scores = Scores(rows, division)
            if scores.cases:
                entries.append(Entry(card, scores))
    for entries in found.values():
        entries.sort(key=lambda entry: -entry.scores.interval[0] if entry.ranked else 1000.0)
    return found, left_out


def _submissions(folder: Path) -> list[Path]:
    """The folder itself if it is a submission, else the submissions in it."""
    folders = [folder] if (folder / CARD).is_file() else sorted(path.parent for path in folder.glob(f"*/{CARD}"))
    if not folders:
        raise ConfigError(f"{folder}: no submissions, expected folders with {CARD} and {RESULTS}")
    return folders


def ranks(entries: Sequence[Entry]) -> list[str]:
    """The ranks that each entry may have: of two entries one is ahead if the paired interval is off zero."""
    drawn = np.stack([entry.scores.drawn for entry in entries])
    found = []
    for own in drawn:
        low, high = np.array([between(other - own) for other in drawn]).T
        ahead, not_behind = int((low > 0).sum()) + 1, len(drawn) - int((high < 0).sum())
        found.append(str(ahead) if ahead == not_behind else f"{ahead} to {not_behind}")
    return found


def page(divisions: dict[str, list[Entry]]) -> str:
    """The leaderboard in Markdown."""
    lines = [
        "# Leaderboard",
        "",
        f"rlpto-bench, version {VERSION}. A case scores 0 with the mean JCT of `fifo`, and 100 with its lower bound,",
        "which no policy can reach. Where accuracy counts and on rented nodes, the cost takes the place of the",
        "mean JCT, relative to the cost under `fifo` in each window. A score is the mean over the cases of a division",
        "that count.",
        "Intervals are 95 %",
        f"bootstrap intervals over windows, and seeds of training where there are several ({RESAMPLES:,} resamples);",
        "differences are paired by window. A policy is ahead of another one if the interval of their difference is off",
        "zero; a range of ranks has the policies that cannot be distinguished. How cases are run and checked:",
        "[bench.md](bench.md).",
        "`rlpto bench table submissions -o docs/leaderboard.md --plot docs/images/leaderboard.png` wrote this page.",
        "",
        "![Scores of all submissions](images/leaderboard.png)",
    ]
    for division, entries in divisions.items():
        ranked = [entry for entry in entries if entry.ranked]
        if entries:
            lines += ["", f"## {HEADINGS[division]}", "", ABOUT[division]]
        if ranked:
            rows = [entry.cells(ranked[0], rank) for entry, rank in zip(ranked, ranks(ranked), strict=True)]
            lines += ["", *markdown_table(rows)]
        if entries:
            lines += ["", "Score by case:", "", *markdown_table(_by_case(entries, division))]
    return "\n".join(lines) + "\n"


def agent_scores(folder: Path, agent: Path) -> list[str]:
    """Lines on a submission's scores for the model card of an agent. agent: a checkpoint or an exported file.

    Raises ConfigError or CheckpointError if the submission is invalid, or has other policies.
    """
    card = read_card(folder)
    files = [agent_file(runnable(spec, folder)) for spec in card.policies]
    decide = [deciding(read_archive(file, FORMATS)) for file in (agent, *filter(None, files))]
    if None in files or decide[0] not in decide[1:]:
        raise ConfigError(f"{folder}: a submission of {', '.join(card.policies)}; expected one of {agent}")
    divisions, wrong = entries_of([folder])
    if wrong:
        raise ConfigError(f"{folder}: {'; '.join(wrong)}")
    scored = [(division, entry.scores) for division, entries in divisions.items() for entry in entries]
    whole = {f"**{name}**": "{:.1f} [{:.1f}, {:.1f}]".format(*one.interval) for name, one in scored if not one.missing}
    if not scored:
        raise ConfigError(f"{folder}: no results")
    cases = {case: f"{score:.1f}" for _, one in scored for case, score in one.by_case().items()}
    trained = f" Training took {card.training_cpu_s:.0f} CPU-seconds." if card.training_cpu_s else ""
    return [
        f"\n## Scores\n\n`rlpto bench run {' '.join(card.policies)}`, suite {card.suite}: 0 is `fifo`, 100 the lower",
        "bound of mean JCT or, where the cost is scored, of the cost. Intervals (95 %) are over windows, and policies "
        f"where there are several.{trained}\n",
        *markdown_table([{"case": case, "score": score} for case, score in (whole | cases).items()]),
    ]


def agent_file(spec: str) -> Path | None:
    """The checkpoint of the agent that allocates GPUs or rents nodes. Default: none does."""
    policy, its = allocating(spec), parse_spec(spec).provisioner
    if isinstance(policy, Agent):
        return policy.options.checkpoint()
    rents = None if its is None else make_provisioner(its)
    return rents.path if isinstance(rents, NodesAgent) else None


def plot(divisions: dict[str, list[Entry]], path: Path) -> None:
    """Draw the scores of all divisions as bars with their intervals, and write the picture."""
    ranked = {division: [entry for entry in entries if entry.ranked] for division, entries in divisions.items()}
    if not (shown := {division: entries for division, entries in ranked.items() if entries}):
        raise ConfigError(f"{path}: nothing to plot, no submission has all cases of a division")
    longest = max(map(len, shown.values()))
    lines = -(-len(shown) // IN_LINE)
    figure = empty_figure(4.5 * max(min(len(shown), IN_LINE), 2), (0.9 + 0.28 * longest) * lines)
    places = figure.subplots(lines, min(len(shown), IN_LINE), squeeze=False).flatten()
    for axes in places[len(shown) :]:
        axes.set_axis_off()
    for axes, (division, entries) in zip(places, shown.items(), strict=False):
        middle, low, high = np.array([entry.scores.interval for entry in entries]).T
        at = np.arange(len(entries))
        axes.barh(at, middle, xerr=np.maximum([middle - low, high - middle], 0.0), color=COLOURS[0], ecolor=INK)
        axes.set_yticks(at, [entry.card.name for entry in entries])
        axes.set_ylim(longest - 0.5, -0.5)
        axes.set_xlim(min(0.0, float(low.min()) - 2), 100)
        axes.set_title(HEADINGS[division], fontsize=10, loc="left")
        axes.set_xlabel("score: 0 is fifo, 100 the lower bound")
        axes.spines[["top", "right"]].set_visible(False)
    with whole_file(path, "a plot", ConfigError) as unfinished:
        unfinished.write_bytes(png(figure))


def _by_case(entries: Sequence[Entry], division: str) -> list[dict[str, str]]:
    """Rows of scores, with a column for every case that a submission has."""
    scores = {entry.card.name: entry.scores.by_case() for entry in entries}
    names = [case.id for case in cases() if any(case.id in mine for mine in scores.values())]
    return [
        {"policy": policy}
        | {name.removesuffix(f"-{division}"): f"{mine[name]:.1f}" if name in mine else "" for name in names}
        for policy, mine in scores.items()
    ]
