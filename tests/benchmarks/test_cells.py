"""The studies of `make results`, with tuned indices in the place of trained agents."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.io.errors import ConfigError
from rlpto.policies.registry import make_policy

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import _cells  # noqa: E402
import _plan  # noqa: E402
import _study_agents  # noqa: E402
import _study_cases as cases  # noqa: E402
import study  # noqa: E402

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
STUDIES = _plan.load_studies()
AGENTS = {name: row for name, row in STUDIES.items() if row.runs}


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _plan.Plan:
    """A small workload; agents of two seeds are the two-parameter index and one with other weights."""
    config = tmp_path / "small.yaml"
    weights = ROOT / "configs" / "tuned" / "quickstart.yaml"
    config.write_text(SMALL % weights)
    monkeypatch.setattr(_plan, "config_file", lambda _: config)

    def agents(*_: object) -> list[str]:
        return ["index:label=agent-0", f"index:label=agent-1,weights={weights}"]

    monkeypatch.setattr(_cells, "agents", agents)
    monkeypatch.setattr(_cells, "starts", lambda *_: [f"index:label=agent_start-{seed}" for seed in (0, 1)])
    return _plan.Plan(
        folder=tmp_path,
        cells=tmp_path / "cells",
        workloads=("synthetic",),
        loads=(0.5, 0.9),
        seeds=2,
        windows=3,
        spread="all",
    )


def test_rewards_compare_the_mean_agent_and_no_cell_runs_twice(plan: _plan.Plan, monkeypatch) -> None:
    found = study.measured("reward", STUDIES["reward"], plan, fresh=True)
    pages = [study.page_text(plan, STUDIES, template) for template in study.TEMPLATES.values()]
    assert all(f"| {policy} |" in pages[1] for policy in ("fifo", "agent", "lower bound"))
    cells = _cells.cells_of(plan, STUDIES["reward"])
    own = {f"{name}{seed}" for name in ("agent", "agent_start") for seed in ("", "-0", "-1")}
    assert set(cells["policy"]) == {"fifo", "equal_share", "tuned_index", "lower bound", *own}
    verdicts = found["facts"]["verdicts"]
    assert [row["load"] for row in verdicts] == [0.5, 0.9]
    for row in verdicts:
        here = cells[cells["load"] == row["load"]].pivot_table(index="window", columns="policy", values="reward")
        assert len(here) == row["windows"] == 3
        np.testing.assert_allclose(here["agent"], (here["agent-0"] + here["agent-1"]) / 2)
        second = here[["fifo", "equal_share", "tuned_index"]].mean().idxmax()
        assert row["runner_up"] == second
        assert row["difference"] == pytest.approx((here["agent"] - here[second]).mean())
        assert row["learned"] == pytest.approx((here["agent"] - here["agent_start"]).mean())
        assert (here["lower bound"] >= here["agent"]).all()
    above = sum(row["difference_low"] > 0 for row in verdicts)
    assert f"in {above} of 2 (ahead on average in {sum(row['difference'] > 0 for row in verdicts)})" in pages[0]
    assert pages[0].splitlines()[4].endswith("| yes |" if above == 2 else "| **no** |")
    assert _cells.cpu_account(plan)["evaluation"] > 0

    def never(*_: object) -> None:
        raise AssertionError("a finished cell was run again")

    monkeypatch.setattr(Experiment, "run_policy", never)
    again = study.measured("reward", STUDIES["reward"], plan, fresh=True)
    assert again["facts"] == found["facts"]


def test_ratios_divide_means_over_windows(plan: _plan.Plan) -> None:
    cells = _cells.cells_of(plan.model_copy(update={"loads": (0.9,)}), STUDIES["reward"])
    found = _cells.ratio(cells, "tuned_index", ["fifo", "equal_share"], "jct_mean")
    jct = cells.pivot_table(index="window", columns="policy", values="jct_mean").mean()
    assert found.estimate == pytest.approx(jct["tuned_index"] / min(jct["fifo"], jct["equal_share"]))
    assert found.low <= found.estimate <= found.high


def test_kept_jobs_never_lose_a_gpu_before_they_finish(plan: _plan.Plan) -> None:
    experiment = Experiment(plan.config("synthetic", 0.9))
    window = max(experiment.windows(), key=lambda name: len(experiment.jobs(name, 0)))
    free = experiment.run_policy(_cells.make(experiment, "index"), window, 0)
    kept = experiment.run_policy(_cells.make(experiment, f"{_cells.KEEPING}index"), window, 0)

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


def test_without_shrinking_the_two_jobs_take_the_published_times(plan: _plan.Plan) -> None:
    """551 s and 782 s in the original, here six times as much, and rescales."""
    config = plan.config("synthetic", 0.9, "simulator.rescale_delay=0")
    experiment = Experiment(config)
    case = cases.Case(cases.CASE_NODES, cases._pair(experiment, "imagenet", "imagenet"))
    done = cases.run_cases(plan, config, {"imagenet": case}, [f"{_cells.KEEPING}index"], "two")
    jobs = done[0].record().jobs
    jct = jobs.finish_time - jobs.submit_time
    assert jct[0] == pytest.approx(6 * 551, rel=0.02)
    assert jct[1] == pytest.approx(6 * 782, rel=0.03)


def test_a_training_is_run_once_and_another_one_in_its_place_is_refused(plan: _plan.Plan, monkeypatch) -> None:
    commands: list[list[str]] = []

    def process(command: list[str], check: bool) -> SimpleNamespace:
        del check
        commands.append(command)
        run = plan.folder / "training" / "synthetic-main-1"
        run.mkdir(parents=True, exist_ok=True)
        (run / "evolution.json").write_text("some generations")
        return SimpleNamespace(returncode=1 if len(commands) == 1 else 0)

    monkeypatch.setattr(_cells.subprocess, "run", process)
    short = plan.model_copy(update={"steps": 1000})
    with pytest.raises(ConfigError, match="synthetic-main-1: training ended with exit code 1"):
        _cells.trained(short, "synthetic", _plan.MAIN, (), 1)
    run = _cells.trained(short, "synthetic", _plan.MAIN, (), 1)
    assert _cells.trained(short, "synthetic", _plan.MAIN, (), 1) == run
    assert len(commands) == 2
    assert {"agent.loads=[0.5,0.9]", "agent.steps=1000", "--seed"} <= set(commands[0])
    assert "--resume" in commands[1]
    with pytest.raises(ConfigError, match="a training with other settings is there"):
        _cells.trained(plan, "synthetic", _plan.MAIN, (), 1)


def test_every_run_of_the_studies_is_a_valid_configuration() -> None:
    config = load_config(_plan.config_file("synthetic"))
    for row in AGENTS.values():
        for run in row.runs:
            load_config(_plan.config_file("synthetic"), _cells._filled((*run.overrides, *run.see), "synthetic"))
            for policy in _cells._filled(
                set(run.policies) - {"config", "agents", "starts", "tuned_index"}, "synthetic"
            ):
                make_policy(policy)
    assert "tuned_index" in map(_cells.label_of, config.policies)


def test_the_templates_show_every_study_that_has_been_run(plan: _plan.Plan) -> None:
    ends = [f"{name}{end}" for name in ("tuned", "index", "published", "bound") for end in ("", "_low", "_high")]
    ratios = [{"workload": "philly", "load": load} | dict.fromkeys(ends, 0.5) for load in (0.5, 1.1)]
    claims = {name: {"least": 0.5, "most": most, "reached": 1} for name, most in (("tuned", 0.97), ("published", 1))}
    facts = {"ratios": ratios, "claims": claims, "limits": _study_agents.JCT_LIMITS}
    kept = plan.folder / "jct.json"
    kept.write_text(study.json.dumps(asdict(_plan.Measured(facts=facts))))
    (plan.folder / "cpu.json").write_text('{"training": 7200.0, "evaluation": 1800.0}')
    text = study.page_text(plan, STUDIES, "results.md.j2")
    assert text.startswith("CPU time of all that is below: 2.50 h (evaluation 0.50, training 2.00).\n")
    assert "at most 0.97 of the tuned index's | 0.500 to 0.970; reached in 1 of 2 | yes |" in text
    assert "equal share | 0.500 to 1.000; reached in 1 of 2 | **no** |" in text
    assert "| philly | 1.1 | 0.500 [0.500, 0.500] |" in text
    assert "## Total reward" not in text
    kept.write_text("{")
    with pytest.raises(ConfigError, match=r"jct\.json: .*the results of a study"):
        study.page_text(plan, STUDIES, "results.md.j2")
