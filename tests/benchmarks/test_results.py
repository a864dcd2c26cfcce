"""The program of `make results`, with tuned indices in the place of trained agents."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.io.errors import ConfigError
from rlpto.policies.registry import make_policy

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import _results_cases as cases  # noqa: E402
import _results_numbers as numbers  # noqa: E402
import _results_plan as plans  # noqa: E402
import _results_runs as runs  # noqa: E402
import large  # noqa: E402
import results  # noqa: E402

CONFIGS = ROOT / "configs"
SMALL = """
name: small
cluster: {nodes: [{count: 4, gpus: 4}]}
workload:
  days: 4
  load: 0.9
  windows: {hours: 4, train: 0.5, validation: 0, test: 0.5}
  mapping: {oversized: skip}
policies: [fifo, equal_share, "index:label=tuned_index,weights=%s"]
evaluation: {reference: fifo}
"""


STUDIES = plans.load_studies()
PAGE = "results.md.j2"


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> plans.StudyPlan:
    """A small workload; agents of two seeds are the two-parameter index and one with other weights."""
    config = tmp_path / "small.yaml"
    weights = CONFIGS / "tuned" / "quickstart.yaml"
    config.write_text(SMALL % weights)
    monkeypatch.setattr(plans, "config_file", lambda _: config)

    def agents(*_: object) -> list[str]:
        return ["index:label=agent-0", f"index:label=agent-1,weights={weights}"]

    monkeypatch.setattr(runs, "agents", agents)
    monkeypatch.setattr(runs, "starts", lambda *_: [f"index:label=agent_start-{seed}" for seed in (0, 1)])
    return plans.StudyPlan(tmp_path / "results", ("synthetic",), (0.5, 0.9), (0, 1), windows=3)


def test_reward_part_compares_the_mean_agent_and_never_runs_a_cell_twice(plan, monkeypatch) -> None:
    results.run_study(plan, "reward", STUDIES["reward"])
    text = results.page_text(plan, STUDIES, PAGE)
    details = results.page_text(plan, STUDIES, "results_details.md.j2")
    assert all(f"| {policy} |" in details for policy in ("fifo", "agent", "lower bound"))
    verdicts = pd.read_csv(plan.folder / "tables" / "reward.csv")
    cells = pd.read_csv(plan.folder / "tables" / "reward-cells.csv")
    assert list(verdicts["load"]) == [0.5, 0.9]
    assert set(cells["policy"]) == {
        *(
            "fifo",
            "equal_share",
            "tuned_index",
            "agent-0",
            "agent-1",
            "agent",
            "agent_start",
            "agent_start-0",
            "agent_start-1",
            "lower bound",
        )
    }
    for load, row in verdicts.set_index("load").iterrows():
        here = cells[cells["load"] == load].pivot_table(index="window", columns="policy", values="reward")
        assert len(here) == row["windows"] == 3
        np.testing.assert_allclose(here["agent"], (here["agent-0"] + here["agent-1"]) / 2)
        second = here[["fifo", "equal_share", "tuned_index"]].mean().idxmax()
        assert row["runner_up"] == second
        assert row["difference"] == pytest.approx((here["agent"] - here[second]).mean())
        assert row["learned"] == pytest.approx((here["agent"] - here["agent_start"]).mean())
        assert (here["lower bound"] >= here["agent"]).all()
    above = (verdicts["difference_low"] > 0).sum()
    assert f"in {above} of 2 (ahead on average in {(verdicts['difference'] > 0).sum()})" in text
    assert text.splitlines()[4].endswith("| yes |" if above == 2 else "| **no** |")
    spent = runs.cpu_account(plan)["evaluation"]
    assert spent > 0

    def never(*_: object) -> None:
        raise AssertionError("a finished cell was run again")

    monkeypatch.setattr(Experiment, "run_policy", never)
    results.run_study(plan, "reward", STUDIES["reward"])
    assert results.page_text(plan, STUDIES, PAGE).splitlines()[1:] == text.splitlines()[1:]
    assert runs.cpu_account(plan)["evaluation"] >= spent


def test_time_part_divides_means_over_windows(plan) -> None:
    cells = runs.cells_of(replace(plan, loads=(0.9,)), STUDIES["reward"])
    found = numbers.ratio(cells, "tuned_index", ["fifo", "equal_share"], "jct_mean")
    jct = cells.pivot_table(index="window", columns="policy", values="jct_mean").mean()
    assert found.estimate == pytest.approx(jct["tuned_index"] / min(jct["fifo"], jct["equal_share"]))
    assert found.low <= found.estimate <= found.high


def test_kept_jobs_never_lose_a_gpu_before_they_finish(plan) -> None:
    config = plan.config("synthetic", 0.9)
    experiment = Experiment(config)
    window = max(experiment.windows(), key=lambda name: len(experiment.jobs(name, 0)))
    free = experiment.run_policy(runs.make(experiment, "index"), window, 0)
    kept = experiment.run_policy(runs.make(experiment, f"{runs.KEEPING}index"), window, 0)

    def losses(record) -> int:
        held = np.zeros(len(record.jobs.names), dtype=int)
        count = 0
        for time, job, gpus in zip(record.changes.time, record.changes.job, record.changes.gpus, strict=True):
            finished = time >= record.jobs.finish_time[job]
            count += gpus < held[job] and not finished
            held[job] = gpus
        return count

    assert losses(kept) == 0
    assert losses(free) > 0
    assert np.isfinite(kept.jobs.finish_time).all()
    assert (kept.decisions.held <= kept.decisions.capacity).all()


def test_without_shrinking_the_two_jobs_take_the_published_times(plan) -> None:
    """551 s and 782 s in the original, here six times as much, and rescales."""
    config = plan.config("synthetic", 0.9, "simulator.rescale_delay=0")
    experiment = Experiment(config)
    pair = (cases._converging_job(experiment, "imagenet"), cases._other_job(experiment, "imagenet"))
    case = cases.Case(cases.CASE_NODES, pair)
    done = cases.run_cases(plan, config, {"imagenet": case}, [f"{runs.KEEPING}index"], "two")
    jobs = done[0].record().jobs
    jct = jobs.finish_time - jobs.submit_time
    assert jct[0] == pytest.approx(6 * 551, rel=0.02)
    assert jct[1] == pytest.approx(6 * 782, rel=0.03)


def test_jobs_of_the_data_case_differ_in_their_data_alone(plan) -> None:
    jobs = cases._five_jobs(Experiment(plan.config("synthetic", 0.9)), "bert", 1)
    sizes = sorted(job.data_size for job in jobs)
    assert sizes[-1] / sizes[0] == pytest.approx(100)
    assert len({(job.model, job.epochs, job.requested_gpus, job.max_gpus, job.submit_time) for job in jobs}) == 1


def test_a_page_keeps_what_people_wrote(tmp_path: Path) -> None:
    path = tmp_path / "results.md"
    results.write_page(path, "text of it\n")
    path.write_text(f"Before.\n{path.read_text()}After.\n")
    results.write_page(path, "other\n")
    text = path.read_text()
    assert text.startswith("Before.\n# Results")
    assert text.endswith("After.\n")
    assert "other\n" in text
    assert "text of it" not in text
    path.write_text("no marks")
    with pytest.raises(ConfigError, match=r"results\.md: expected the marks"):
        results.write_page(path, "")
    assert path.read_text() == "no marks"


def test_the_page_tells_every_study_that_has_been_run(tmp_path: Path) -> None:
    plan = plans.StudyPlan(tmp_path)
    (tmp_path / "numbers").mkdir()
    (tmp_path / "cpu.json").write_text('{"training": 7200.0, "evaluation": 1800.0}')
    kept = {
        "ratios": [
            {"workload": "philly", "load": load}
            | {
                f"{name}{end}": 0.5
                for name in ("tuned", "index", "published", "bound")
                for end in ("", "_low", "_high")
            }
            for load in (0.5, 1.1)
        ],
        "claims": {
            name: {"least": 0.5, "most": most, "reached": 1} for name, most in (("tuned", 0.97), ("published", 1))
        },
        "limits": numbers.JCT_LIMITS,
    }
    (tmp_path / "numbers" / "jct.json").write_text(json.dumps(kept))
    text = results.page_text(plan, STUDIES, PAGE)
    assert text.startswith("CPU time of all that is below: 2.50 h (evaluation 0.50, training 2.00).\n")
    assert "at most 0.97 of the tuned index's | 0.500 to 0.970; reached in 1 of 2 | yes |" in text
    assert "tiresias and equal share | 0.500 to 1.000; reached in 1 of 2 | **no** |" in text.replace(
        "Tiresias", "tiresias"
    )
    assert "| philly | 1.1 | 0.500 [0.500, 0.500] |" in text
    assert "## Total reward" not in text
    (tmp_path / "numbers" / "jct.json").write_text("{")
    with pytest.raises(ConfigError, match=r"jct\.json: .*the numbers of a study"):
        results.page_text(plan, STUDIES, PAGE)


def test_a_training_is_run_once_and_another_one_in_its_place_is_refused(tmp_path, monkeypatch) -> None:
    commands: list[list[str]] = []

    def process(command: list[str], check: bool) -> SimpleNamespace:
        del check
        commands.append(command)
        run = tmp_path / "training" / "synthetic-main-1"
        run.mkdir(parents=True, exist_ok=True)
        (run / "evolution.json").write_text("some generations")
        return SimpleNamespace(returncode=1 if len(commands) == 1 else 0)

    monkeypatch.setattr(runs.subprocess, "run", process)
    plan = plans.StudyPlan(tmp_path, loads=(0.5, 1.1), steps=1000)
    with pytest.raises(ConfigError, match="synthetic-main-1: training ended with exit code 1"):
        runs.trained(plan, "synthetic", plans.MAIN, 1)
    run = runs.trained(plan, "synthetic", plans.MAIN, 1)
    assert runs.trained(plan, "synthetic", plans.MAIN, 1) == run
    assert len(commands) == 2
    assert {"agent.loads=[0.5,1.1]", "agent.steps=1000", "--seed"} <= set(commands[0])
    assert "--resume" in commands[1]
    with pytest.raises(ConfigError, match="a training with other settings is there"):
        runs.trained(plans.StudyPlan(tmp_path, loads=(0.5,)), "synthetic", plans.MAIN, 1)


def test_every_run_of_the_studies_is_a_valid_configuration_and_belongs_to_a_function() -> None:
    config = load_config(plans.config_file("synthetic"))
    assert all(callable(results.numbers_of(name)) for name in STUDIES)
    for study in STUDIES.values():
        for run in study.runs:
            load_config(plans.config_file("synthetic"), runs._filled((*run.overrides, *run.see), "synthetic"))
            for policy in runs._filled(set(run.policies) - {"config", "agents", "starts", "tuned_index"}, "synthetic"):
                make_policy(policy)
    assert "tuned_index" in map(runs.label_of, config.policies)


def test_a_wrong_study_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "studies.yaml"
    path.write_text(plans.STUDIES.read_text().replace("    variant: time", "    varient: time"))
    with pytest.raises(ConfigError, match=r"studies\.yaml:\d+: jct\.runs\.0\.varient: "):
        plans.load_studies(path)


@pytest.mark.parametrize(
    "program", sorted(path.name for path in (ROOT / "benchmarks").glob("*.py") if not path.name.startswith("_"))
)
def test_every_program_explains_itself(program: str, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [program, "--help"])
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(ROOT / "benchmarks" / program), run_name="__main__")
    assert "usage: " in capsys.readouterr().out


def test_decisions_are_timed_of_policies_that_need_no_file(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    timed: list[str] = []

    def latencies(_experiment: object, name: str, *_: object) -> list[float]:
        timed.append(name)
        return [1.0]

    monkeypatch.setattr(large, "latencies", latencies)
    monkeypatch.setattr(large, "crowd", lambda _: [])
    monkeypatch.setattr(sys, "argv", ["large.py"])
    with pytest.raises(SystemExit, match="0"):
        large.main()
    assert {"fifo", "index"} <= set(timed)
    assert not {"agent", "pretrained"} & set(timed)
    assert "fifo, p99" in capsys.readouterr().out


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        results.chosen("--only", "reward,speed", tuple(STUDIES))
    assert "--only reward,speed: 'speed' is none of reward, jct" in capsys.readouterr().err
    assert results.chosen("--only", "jct,reward", tuple(STUDIES)) == ("reward", "jct")
