"""The cases of rlpto-bench are frozen: their jobs, results, training windows and data sets."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from rlpto.bench import suite
from rlpto.bench.dataset import record
from rlpto.bench.results import read_rows, row_of
from rlpto.bench.suite import DIVISIONS, FIFO_FILE, FOLDER, VERSION, case_env, cases, digests, find_case
from rlpto.envs.actions import LARGEST
from rlpto.experiments.experiment import Experiment
from rlpto.experiments.training_runs import check_whole_windows
from rlpto.io.errors import ConfigError
from rlpto.workloads.frozen import digest_of, read_jobs
from tests.slow import few

SMALL = "microsoft04-1.1-exact"
WITH_HISTORY = ("-history", "-transfer", "-rigid", "-converging", "-rented")


def test_the_jobs_of_all_cases_that_ship_are_those_of_their_digests() -> None:
    shipped = [case for case in cases() if case.ships]
    assert len(shipped) >= 24
    assert {case.division for case in shipped} == set(DIVISIONS)
    for name in {case.jobs for case in shipped}:
        jobs = read_jobs(FOLDER / "jobs" / f"{name}.parquet")
        assert digest_of(jobs) == digests()[name], name
        assert len(jobs.windows) >= 5
        assert len(jobs.past) == (len(jobs.windows) if name.endswith(WITH_HISTORY) else 0)
    assert len({case.digest for case in cases()}) == len(cases())


def test_the_digest_of_a_rented_case_covers_its_model_of_the_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    case, other = find_case("microsoft04-rented"), find_case("microsoft04-0.9-converging")
    before = case.digest, other.digest
    monkeypatch.setattr(suite, "digest_of_file", lambda _: "another model")
    assert case.digest != before[0]
    assert other.digest == before[1]


@pytest.mark.parametrize("name", ["microsoft03-0.7", "microsoft04-0.9-history", "microsoft03-rented"])
def test_jobs_drawn_again_are_the_frozen_ones(name: str) -> None:
    assert digest_of(find_case(name).draw()) == digests()[name]


def test_agents_may_learn_from_whole_windows_of_every_case() -> None:
    for case in cases():
        check_whole_windows(case.drawing)


def test_no_policy_is_trained_on_a_cluster_of_the_division_transfer() -> None:
    said = "case microsoft02-0.9-transfer: no policy may be trained"
    for use in (find_case("microsoft02-0.9-transfer").training, partial(case_env, "microsoft02-0.9-transfer")):
        with pytest.raises(ConfigError, match=said):
            use()
    assert "rlpto/Bench-microsoft04-0.9-history-v1" in gymnasium.registry
    assert not [name for name in gymnasium.registry if "transfer" in name]


def test_frozen_history_gives_the_results_of_the_trace() -> None:
    """The first window with what had finished, and without."""
    case = find_case("microsoft04-0.9-history")
    frozen, drawn = Experiment(case.config()), Experiment(case.drawing)
    window = frozen.windows()[0]
    assert sorted(map(str, frozen.past(window, 0))) == sorted(map(str, drawn.past(window, 0)))
    config = case.config()
    forgetful = config.model_copy(update={"knowledge": config.knowledge.model_copy(update={"history_days": 0.0})})
    known, again, unknown = (
        one.run_policy(one.policy("index"), window, 0).jobs.finish_time
        for one in (frozen, drawn, Experiment(forgetful))
    )
    np.testing.assert_array_equal(known, again)
    assert not np.array_equal(known, unknown)


@pytest.mark.parametrize(
    "name",
    few(
        [
            *("microsoft04-0.9", "synthetic-0.7-exact", "synthetic-failures", "kinds-exact", "llm", "llm_kinds-exact"),
            *("microsoft03-1.1-history", "synthetic-failures-history", "kinds-history", "microsoft02-0.9-transfer"),
            *(
                "microsoft04-0.9-half-rigid",
                "microsoft03-1.1-all-rigid",
                "synthetic-0.9-converging",
                "microsoft07-rented",
            ),
        ],
        *("microsoft04-0.9", "synthetic-failures-history", "kinds-exact", "microsoft07-rented"),
    ),
)
def test_no_result_has_moved(name: str) -> None:
    """A change of any digit asks for another version of the suite."""
    case, kept = find_case(name), {row.place: row for row in read_rows(FIFO_FILE)}
    experiment = Experiment(case.config())
    jobs = {window: len(experiment.jobs(window, experiment.config.seed)) for window in experiment.windows()}
    window = min(jobs, key=lambda name: jobs[name])
    record = experiment.run_policy(experiment.policy("fifo"), window, experiment.config.seed)
    found = row_of(case, "fifo", record)
    assert replace(found, cpu_ms=0.0) == replace(kept[found.place], cpu_ms=0.0)


def test_a_data_set_takes_no_provisioner() -> None:
    with pytest.raises(
        ConfigError, match="index@average: the environment has a provisioner, expected a policy without @"
    ):
        record("microsoft04-rented", "index@average", "rlpto/mine-v1", 1)


@pytest.mark.slow
def test_agents_learn_on_windows_like_those_of_a_case() -> None:
    env = gymnasium.make(f"rlpto.bench:rlpto/Bench-{SMALL}-v{VERSION}")
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    env.step(0 * env.action_space.sample())
    assert set(Experiment(find_case(SMALL).drawing).windows("train")).isdisjoint(
        Experiment(find_case(SMALL).config()).windows()
    )


@pytest.mark.slow
def test_a_recorded_planner_earns_what_its_actions_earn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    settings: dict[str, object] = {"episode": {"min_hours": 0.5, "max_hours": 1}, "baseline": "none"}
    steps, cut = record(SMALL, "planner", "rlpto/test-v0", 2, **settings)
    episodes = list(minari.load_dataset("rlpto/test-v0").iterate_episodes())
    assert sum(len(episode.actions) for episode in episodes) == steps
    taken = np.concatenate([episode.actions for episode in episodes])
    assert cut == np.mean(np.abs(taken).max(axis=1) == LARGEST)
    assert any(episode.actions.any() for episode in episodes), "it is not the index alone"
    for seed, episode in enumerate(episodes):
        env = case_env(SMALL, **settings)
        env.reset(seed=seed)
        earned = [env.step(action)[1] for action in episode.actions]
        np.testing.assert_allclose(earned, episode.rewards, rtol=1e-6)
    with pytest.raises(ConfigError, match="weights of the index alone"):
        record(SMALL, "srtf", "rlpto/other-v0", 1, **settings)
    with pytest.raises(ConfigError, match="is there already"):
        record(SMALL, "planner", "rlpto/test-v0", 1, **settings)
    for name in ("no name", "noversion"):
        with pytest.raises(ConfigError, match=rf"data set {name}: .*expected NAMESPACE/NAME-vNUMBER"):
            record(SMALL, "index", name, 1, **settings)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="data set rlpto/other-v0: "):
        record(SMALL, "index", "rlpto/other-v0", 1, **settings)
