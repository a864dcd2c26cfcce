"""Pages of the site that are made of results: one for each case of rlpto-bench, and the gallery of policies."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from rlpto.bench.leaderboard import ABOUT, HEADINGS, Entry
from rlpto.bench.results import FIGURES, read_rows
from rlpto.bench.suite import DIVISIONS, FIFO_FILE, FOLDER, VERSION, Case, cases, find_case
from rlpto.core.policy import PolicyClass
from rlpto.evaluation.metrics import completion_times
from rlpto.evaluation.plots import gantt, png
from rlpto.experiments.experiment import Experiment
from rlpto.io.markdown import markdown_table
from rlpto.policies.registry import is_complete, options_of
from rlpto.policies.spec import parse_spec
from rlpto.workloads.frozen import read_jobs

JOBS = {
    "microsoft": "Jobs recorded on a Microsoft cluster in 2021 (`{path}`)",
    "synthetic": "Jobs drawn like those of Microsoft's cluster Philly",
    "kinds": "Whole trainings of models, drawn like the jobs of Microsoft's cluster Philly, on three GPU types",
    "llm": "Jobs of a lab that develops large language models, by `configs/llm.yaml` and `configs/llm_kinds.yaml`",
    "philly": "Jobs recorded on Microsoft's cluster Philly in 2017",
    "pollux": "Jobs drawn from two workloads of Pollux's benchmark",
}
"""What the jobs of a case are, by how its name starts; path: of the setting `workload`."""
SHOWN, WINDOW, HOURS = "microsoft03-1.1-exact", "test-002", 30
"""Case, window and hours of the gallery's pictures: few jobs, which most policies schedule differently."""
CHANGED: dict[str, dict[str, object]] = {
    "speeds": {"mode": "noisy", "remaining_sigma": 0.0},
    "lengths": {"remaining": "unknown"},
}
"""What a policy uses if a change of knowledge changes its schedule."""
SPECS = {"pretrained": "pretrained:synthetic_time"}
"""Specs shown of policies whose name alone is not complete."""
GALLERY = f"""
## Each policy, on the same {HOURS} hours

A picture shows the first {HOURS} hours of window `{WINDOW}` of case `{SHOWN}`. Every job is a row, in order of
submission: a thin line while it waits, bars while it holds GPUs. The mean JCT is over the whole window.

**Uses** says which knowledge changes the schedule of a policy in this window. It is measured by two more runs:
*speeds*, with errors in the speeds that policies see (`knowledge.mode: noisy`, `remaining_sigma: 0`); *lengths*, with
unknown remaining work (`knowledge.remaining: unknown`). `gavel` uses speeds only to compare GPU types, and this
cluster has one type.
"""
CASES = "\nThe page of a case has its divisions: ids, commands, jobs, and the scores of all submissions.\n"
NOT_SHIPPED = "\nThey do not ship: [where they are from](../workloads.md#catalogue).\n"
Entries = Mapping[str, list[Entry]]


def table(heading: list[str], *rows: list[str]) -> str:
    """Rows in Markdown, of a page."""
    lines = markdown_table([dict(zip(heading, row, strict=True)) for row in rows])
    return "\n" + "\n".join(lines) + "\n"


def scores_of(case: Case, entries: Entries) -> list[list[str]]:
    """Submissions and their scores on a case, best first."""
    found = [(entry.card.name, entry.scores.by_case()) for entry in entries[case.division]]
    ranked = sorted(((name, mine[case.id]) for name, mine in found if case.id in mine), key=lambda one: -one[1])
    return [[name, f"{score:.1f}"] for name, score in ranked]


def case_pages(entries: Entries) -> dict[str, str]:
    """A page for every case with its divisions, and one that lists them. entries: of the leaderboard."""
    best_of = [f"best, {name}" for name in DIVISIONS]
    pages, listed = {}, [["case", "load", "cluster", "windows", "jobs in a window", *best_of]]
    by_name = dict[str, dict[str, Case]]()
    for case in cases():
        by_name.setdefault(case.name, {})[case.division] = case
    for name, in_division in by_name.items():
        case, own = next(iter(in_division.values())), [in_division.get(division) for division in DIVISIONS]
        workload, failures = case.settings["workload"], case.settings["simulator"].get("failures")
        nodes = case.settings["cluster"]["nodes"]
        cluster = ", ".join(map(group_text, nodes))
        windows = f"{sum(row.case == case.id for row in read_rows(FIFO_FILE))} of {workload['windows']['hours']} h"
        fails = f"fails every {failures['mtbf_hours']} h on average" if failures else "never fails"
        jobs = read_jobs(FOLDER / "jobs" / f"{case.jobs}.parquet").windows if case.ships else {}
        asked = {window: Counter(job.requested_gpus for job in submitted) for window, submitted in jobs.items()}
        sizes, counts = sorted(set().union(*asked.values())), [len(window) for window in jobs.values()]
        rows = [[row, str(count.total()), *(str(count[size]) for size in sizes)] for row, count in asked.items()]
        divided = "".join(division(one, entries) for one in own if one)
        what = next(text for name, text in JOBS.items() if case.id.startswith(name)).format(**workload)
        pages[f"cases/{name}"] = (
            f"# {name}\n\n{what}, {load_text(workload)}. The cluster has {cluster}. A node {fails}. Test "
            f"windows: {windows}. [All cases](README.md).\n{divided}\n## Jobs\n"
            + (table(["window", "jobs", *(f"ask for {size}" for size in sizes)], *rows) if rows else NOT_SHIPPED)
        )
        best = [" ".join(scores_of(one, entries)[0]) if one and scores_of(one, entries) else "" for one in own]
        span = f"{min(counts)} to {max(counts)}" if counts else "not shipped"
        listed.append([f"[{name}]({name}.md)", str(workload.get("load", "")), cluster, windows, span, *best])
    return pages | {"cases/README": CASES + table(*listed)}


def group_text(nodes: Mapping[str, Any]) -> str:
    """A group of nodes of a cluster, as `16 x 4 t4 GPUs`."""
    count = nodes["count"] if "count" in nodes else f"up to {nodes['rented']['most']} rented"
    return f"{count} x {nodes['gpus']} {nodes.get('gpu', '')} GPUs".replace("  ", " ")


def load_text(workload: Mapping[str, Any]) -> str:
    """The load of a workload."""
    return f"at load {workload['load']}" if "load" in workload else "as recorded"


def division(case: Case, entries: Entries) -> str:
    """Ids, commands and scores of a case."""
    rows = [row.figures for row in read_rows(FIFO_FILE) if row.case == case.id]
    fifo, bound = (sum(row[FIGURES.index(key)] for row in rows) / len(rows) / 3600 for key in ("jct", "bound"))
    scale = f"Score 0 is the mean JCT of `fifo`, {fifo:.2f} h, and 100 the bound, {bound:.2f} h."
    if case.by_cost:
        costs = {row.window: row.scored(case) for row in read_rows(FIFO_FILE) if row.case == case.id}
        share = sum(row[-1] / cost for row, cost in zip(rows, costs.values(), strict=True)) / len(rows)
        scale = (
            f"Score 0 is the cost under `fifo` in each window, and 100 the bound, on average {share:.2f} of this cost."
        )
    environment = f"environment of its training windows `rlpto.bench:rlpto/Bench-{case.id}-v{VERSION}`"
    if not case.trains:
        environment = "no training windows"
    apart = " It does not count for the score of its division." if case.ships and not case.counts else ""
    build = "" if case.ships else f"rlpto bench build {case.jobs}\n"
    return (
        f"\n## {HEADINGS[case.division]}\n\n{ABOUT[case.division]} Case `{case.id}`, digest `{case.digest}`; "
        f"{environment}.{apart}\n\n```\n{build}"
        f"rlpto bench run fifo --case {case.id}\n```\n\n{scale}\n"
        + table(["submission", "score"], *(scores_of(case, entries) or [["none yet", ""]]))
    )


def policy_table(entries: Entries, policies: Mapping[str, PolicyClass]) -> str:
    """The table of docs/policies.md: best scores on the board first, then policies that are not on it."""
    best = {name: [board(name, entries[division]) for division in HEADINGS] for name in policies}
    ranked = sorted(policies, key=lambda name: [-score for score in best[name]])
    scores = {name: ["no entry" if score == -inf else f"{score:.1f}" for score in best[name]] for name in ranked}
    rows = [[f"`{name}`", policies[name].summary, *scores[name]] for name in ranked]
    return table(["policy", "what it does", *HEADINGS], *rows)


def board(policy: str, entries: list[Entry]) -> float:
    """The best score of a policy's complete submissions, -inf without one."""
    ranked = [entry for entry in entries if entry.ranked]
    mine = [entry for entry in ranked if parse_spec(entry.card.policies[0]).first.name == policy]
    return max((entry.scores.interval[0] for entry in mine), default=-inf)


def gallery(policies: Mapping[str, PolicyClass], folder: Path | None, say: Callable[[str], None]) -> str:
    """What the site says of each policy. Pictures are written to `folder`/policies; None: there are none.

    say: shows which policy is run.
    """
    page = GALLERY if folder else "\n## Each policy\n"
    for name, policy in policies.items():
        page += f"\n### {name}\n\n{policy.summary[0].upper()}{policy.summary[1:]}. Source: {policy.source}.\n"
        if folder and (is_complete(policy) or name in SPECS):
            say(f"schedule of {name}")
            page += schedule(name, SPECS.get(name, name), folder / "policies")
        if options := [[f"`{key}`", f"`{value or 'none'}`", said] for key, value, said in options_of(policy)]:
            page += "\n<details markdown><summary>Options</summary>\n"
            page += table(["option", "default", "meaning"], *options) + "\n</details>\n"
    return page


@cache
def experiments() -> list[Experiment]:
    """The case of the pictures, with exact knowledge and with each change of it."""
    base = find_case(SHOWN).config()
    known = [base.knowledge.model_copy(update=change) for change in [{}, *CHANGED.values()]]
    return [Experiment(base.model_copy(update={"knowledge": one})) for one in known]


def schedule(name: str, spec: str, folder: Path) -> str:
    """What a policy uses, its mean JCT and its picture, from three runs of one window."""
    runs = [one.run_policy(one.policy(spec), WINDOW, one.config.seed) for one in experiments()]
    first, *others = (run.jobs.finish_time.tobytes() for run in runs)
    uses = ", ".join(what for what, other in zip(CHANGED, others, strict=True) if other != first) or "neither"
    jct = completion_times(runs[0].jobs).mean() / 3600
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.png").write_bytes(png(gantt(runs[0], HOURS * 3600)))
    return (
        f"Uses: {uses}. Mean JCT: {jct:.2f} h.\n\n<details markdown><summary>Schedule of `{spec}`</summary>\n\n"
        f"![Jobs under {spec}](policies/{name}.png)\n\n</details>\n"
    )
