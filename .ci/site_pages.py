"""Pages of the site that are made of results: one for each case of rlpto-bench, and the gallery of policies."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from rlpto.bench.leaderboard import ABOUT, HEADINGS, Entry
from rlpto.bench.results import FIGURES, read_rows
from rlpto.bench.suite import EXACT, FIFO_FILE, FOLDER, REALISTIC, VERSION, Case, cases, find_case
from rlpto.core.policy import PolicyClass
from rlpto.evaluation.metrics import completion_times
from rlpto.evaluation.plots import gantt, png
from rlpto.experiments.experiment import Experiment
from rlpto.policies.registry import is_complete, options_of
from rlpto.policies.spec import parse_spec
from rlpto.workloads.frozen import read_jobs

JOBS = {
    "microsoft": "Jobs recorded on a Microsoft cluster in 2021",
    "synthetic": "Jobs drawn like those of Microsoft's cluster Philly",
    "kinds": "Whole trainings of models, drawn like the jobs of Microsoft's cluster Philly, on three kinds of GPU",
    "philly": "Jobs recorded on Microsoft's cluster Philly in 2017",
    "pollux": "Jobs drawn from two workloads of Pollux's benchmark",
}
"""What the jobs of a case are, by how its name starts."""
SHOWN, WINDOW, HOURS = "microsoft03-1.1-exact", "test-002", 30
"""Case, window and hours of the gallery's pictures: few jobs, which most policies schedule differently."""
CHANGED = {"speeds": {"mode": "noisy", "remaining_sigma": 0.0}, "lengths": {"remaining": "unknown"}}
"""What a policy uses if a change of knowledge changes its schedule."""
SPECS = {"pretrained": "pretrained:synthetic_time"}
"""Specs shown of policies whose name alone is not complete."""
Entries = Mapping[str, list[Entry]]


def table(*rows: list[str]) -> str:
    """Rows in Markdown, the heading first."""
    return "\n" + "".join(f"| {' | '.join(row)} |\n" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))


def scores_of(case: Case, entries: Entries) -> list[list[str]]:
    """Submissions and their scores on a case, best first."""
    found = [(entry.scores.by_case().get(case.id), entry.card.name) for entry in entries[case.division]]
    return [[name, f"{score:.1f}"] for score, name in sorted(found, key=lambda one: -(one[0] or 0)) if score is not None]


def case_pages(entries: Entries) -> dict[str, str]:
    """A page for every set of jobs, with both divisions, and one that lists them. entries: of the leaderboard."""
    pages, listed = {}, [["case", "jobs", "load", "cluster", "windows", "best, realistic", "best, exact"]]
    for case in (case for case in cases() if case.division == REALISTIC):
        both = (case, find_case(f"{case.id}-{EXACT}"))
        workload, failures = case.settings["workload"], case.settings["simulator"].get("failures")
        what = JOBS[next(name for name in JOBS if case.id.startswith(name))]
        nodes = case.settings["cluster"]["nodes"]
        cluster = ", ".join(f"{one['count']} × {one['gpus']} GPUs {one.get('gpu', '')}".strip() for one in nodes)
        windows = f"{sum(row.case == case.id for row in read_rows(FIFO_FILE))} of {workload['windows']['hours']} h"
        fails = f"fails every {failures['mtbf_hours']} h on average" if failures else "never fails"
        pages[f"cases/{case.id}"] = (
            f"# {case.id}\n\n{what}, at load {workload['load']}: GPU-time that jobs ask for over that of the cluster. The "
            f"cluster has {cluster}. A node {fails}. Test windows: {windows}. How it is run and scored: "
            f"[the benchmark](../bench.md).\n{''.join(division(one, entries) for one in both)}\n## Jobs\n{jobs_of(case)}"
        )
        best = [" ".join(scores_of(one, entries)[0]) if scores_of(one, entries) else "" for one in both]
        listed.append([f"[{case.id}]({case.id}.md)", what, str(workload["load"]), cluster, windows, *best])
    return pages | {"cases/README": (
        "# Cases of rlpto-bench\n\nA page has both divisions of a case: ids, commands, jobs, and the scores of all "
        "[submissions](../leaderboard.md). The environment `rlpto/Cluster-v0` is on "
        f"[the agent's page](../agent.md#the-environment).\n{table(*listed)}"
    )}  # fmt: skip


def division(case: Case, entries: Entries) -> str:
    """Ids, commands and scores of a case."""
    rows = [row.figures for row in read_rows(FIFO_FILE) if row.case == case.id]
    fifo, bound = (sum(row[FIGURES.index(key)] for row in rows) / len(rows) / 3600 for key in ("jct", "bound"))
    build = "" if case.ships else f"rlpto bench build {case.jobs}\n"
    return (
        f"\n## {HEADINGS[case.division]}\n\n{ABOUT[case.division]} Case `{case.id}`, digest `{case.digest}`; environment "
        f"of its training windows: `rlpto.bench:rlpto/Bench-{case.id}-v{VERSION}`.\n\n```\n{build}rlpto bench run fifo "
        f"--case {case.id}\n```\n\nScore 0 is the mean JCT of `fifo`, {fifo:.2f} h, and 100 the bound, {bound:.2f} h.\n"
        + table(["submission", "score"], *(scores_of(case, entries) or [["none yet", ""]]))
    )


def jobs_of(case: Case) -> str:
    """Jobs of the windows of a case, by the GPUs that they ask for."""
    if not case.ships:
        return "\nThey do not ship: [where they are from](../workloads.md#catalogue).\n"
    windows = read_jobs(FOLDER / "jobs" / f"{case.jobs}.parquet")
    asked = {name: Counter(job.requested_gpus for job in jobs) for name, jobs in windows.items()}
    sizes = sorted(set().union(*asked.values()))
    rows = ([name, str(count.total()), *(str(count[size]) for size in sizes)] for name, count in asked.items())
    return table(["window", "jobs", *(f"ask for {size}" for size in sizes)], *rows)


def gallery(entries: Entries, folder: Path, policies: Mapping[str, PolicyClass]) -> str:
    """The page of policies. entries: of the leaderboard. Pictures are written to `folder`/policies."""
    (folder / "policies").mkdir(parents=True, exist_ok=True)
    base, listed, sections = find_case(SHOWN).config(), [["policy", "uses", "realistic", "exact", "mean JCT [h]"]], ""
    known = [base.knowledge.model_copy(update=change) for change in ({}, *CHANGED.values())]
    experiments = [Experiment(base.model_copy(update={"knowledge": one})) for one in known]
    for name, policy in policies.items():
        sections += f"\n## {name}\n\n{policy.summary}. Source: {policy.source}.\n"
        uses, jct, spec = "", "", SPECS.get(name, name)
        if is_complete(policy) or name in SPECS:
            runs = [experiment.run_policy(experiment.policy(spec), WINDOW, base.seed) for experiment in experiments]
            schedule, *others = (run.jobs.finish_time.tobytes() for run in runs)
            uses = ", ".join(what for what, other in zip(CHANGED, others, strict=True) if other != schedule) or "neither"
            jct = f"{completion_times(runs[0].jobs).mean() / 3600:.2f}"
            (folder / "policies" / f"{name}.png").write_bytes(png(gantt(runs[0], HOURS)))
            sections += f"\n![Jobs over time under {spec}](policies/{name}.png)\n\n`{spec}`: mean JCT {jct} h\n"
        if options := [[f"`{key}`", f"`{value}`" if value else "", said] for key, value, said in options_of(policy)]:
            sections += "\n<details markdown><summary>Options</summary>\n"
            sections += table(["option", "default", "meaning"], *options) + "\n</details>\n"
        listed.append([f"[{name}](#{name})", uses, *(", ".join(board(name, entries[one])) for one in HEADINGS), jct])
    return (
        "# Policies\n\nRealistic and exact: scores on [the board](leaderboard.md), of policies that were submitted. How "
        f"published systems differ from their originals: [systems](systems/README.md).\n{table(*listed)}\nAll pictures "
        f"show the first {HOURS} hours of window `{WINDOW}` of [{SHOWN}](cases/{SHOWN.removesuffix('-exact')}.md): a row "
        "for each job, a thin line while it waits, bars while it holds GPUs. `make docs` ran the policies and drew them. "
        "Uses, by two more runs of each: speeds, if the schedule changes with errors in the speeds that policies see "
        "(`knowledge.mode: noisy`, `remaining_sigma: 0`); lengths, if it changes where remaining work is unknown "
        "(`knowledge.remaining: unknown`). `gavel` compares kinds of GPU, and this cluster has one.\n" + sections
    )


def board(policy: str, entries: list[Entry]) -> Iterator[str]:
    """Scores of a policy's complete submissions, with their names where these differ."""
    for card, scores in ((entry.card, entry.scores) for entry in entries if entry.ranked):
        if policy == parse_spec(card.policies[0]).first.name:
            yield f"{scores.interval[0]:.1f}" + ("" if card.name == policy else f" ({card.name})")
