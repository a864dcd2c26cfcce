import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlpto.core.policy import reads_speeds
from rlpto.evaluation.metrics import lower_bound
from rlpto.experiments.config import ClusterSettings, Config, KnowledgeSettings, NodeGroup, load_config
from rlpto.experiments.experiment import Experiment, prepare, run_cell
from rlpto.experiments.run_folder import run_facts
from rlpto.io.errors import ConfigError, JobError
from rlpto.simulator.settings import SimulatorSettings
from rlpto.workloads.load import offered_load
from rlpto.workloads.mapping import requested_work
from rlpto.workloads.trace import make_trace, write_trace

CONFIGS = Path(__file__).parents[2] / "configs"
ONLINE = KnowledgeSettings(mode="online", fits="shared", remaining="learnt")


def synthetic(**changes: object) -> Config:
    """Two days of synthetic jobs on 16 GPUs; `changes` to the workload."""
    workload = {
        "days": 2,
        "load": 0.5,
        "windows": {"hours": 6, "train": 0.5, "validation": 0, "test": 0.5},
        "mapping": {"oversized": "skip"},
        **changes,
    }
    return Config.model_validate({"cluster": {"nodes": [{"count": 4, "gpus": 4}]}, "workload": workload})


def test_the_same_window_and_seed_give_the_same_jobs_and_others_do_not() -> None:
    experiment = Experiment(synthetic())
    first, second = experiment.windows("test")[:2]
    assert experiment.jobs(first, 0) == experiment.jobs(first, 0) == Experiment(synthetic()).jobs(first, 0)
    assert experiment.jobs(first, 0) != experiment.jobs(first, 1)
    assert [job.name for job in experiment.jobs(first, 0)] == [job.name for job in experiment.jobs(first, 1)]
    assert not {job.name for job in experiment.jobs(first, 0)} & {job.name for job in experiment.jobs(second, 0)}


LASTING = {"oversized": "skip", "users": "clustered", "lasting": True}


def test_lasting_users_submit_the_same_model_in_all_windows() -> None:
    experiment = Experiment(synthetic(days=8, mapping=LASTING))
    models: dict[str, set[tuple[str, int]]] = {}
    windows = [*experiment.windows("train"), *experiment.windows("test")]
    for window in windows:
        for job in experiment.jobs(window, 0):
            models.setdefault(job.user, set()).add((job.model, job.requested_gpus))
    for found in models.values():  # other models only for numbers of GPUs that the user's own model cannot use
        assert len({model for model, gpus in found if gpus == 1}) <= 1
    users = [{job.user for job in experiment.jobs(window, 0)} for window in windows]
    assert sum(len(a & b) for a, b in itertools.pairwise(users)) > 10
    assert experiment.jobs(windows[0], 0) != experiment.jobs(windows[0], 1)


def test_only_jobs_that_have_finished_are_known_before_a_window() -> None:
    workload = Experiment(synthetic(days=8, mapping=LASTING)).workload
    trace, *_ = workload.scaled
    names = np.array(trace.texts("name"))
    for name in workload.names("test"):
        start = workload.windows[name].start
        known = workload.finished_before(name, 0, None)
        ended = trace.submit_time + trace.duration <= start
        assert 0 < len(known) <= ended.sum()
        jobs = [job for other in workload.windows for job in workload.jobs(other, 0) if job.name in set(names[ended])]
        assert sorted((job.user, job.epochs) for job in jobs) == sorted((user, epochs) for _, user, epochs in known)
        newest = workload.finished_before(name, 0, 1.0)
        assert set(newest) < set(known)
        assert workload.finished_before(name, 0, 0.0) == ()
    without = Experiment(synthetic(days=8)).workload
    assert without.finished_before(without.names("test")[0], 0, None) == ()


def test_history_changes_what_policies_see_and_not_the_jobs() -> None:
    config = synthetic(days=8, load=0.9, mapping=LASTING)
    seen, jobs = [], []
    for days in (None, 0.0):
        experiment = Experiment(
            config.model_copy(update={"knowledge": ONLINE.model_copy(update={"history_days": days})})
        )
        window = experiment.windows("test")[-1]
        jobs.append(experiment.jobs(window, 0))
        cluster = experiment.cluster(window, 0)
        seen.append(cluster.table_of(np.arange(len(cluster.store))))
    assert jobs[0] == jobs[1]
    assert seen[0].remaining_known.mean() > 0.9
    assert not seen[1].remaining_known.any()
    left = np.log(seen[0].remaining) - np.log([job.epochs for job in jobs[0]])
    unknown = np.log(seen[1].remaining) - np.log([job.epochs for job in jobs[0]])
    assert np.var(left) < 0.7 * np.var(unknown)


@pytest.mark.parametrize("metric", ["goodput", "throughput"])
def test_a_share_of_the_jobs_keeps_its_batch_size(metric: str) -> None:
    changed = Experiment(synthetic(metric=metric, mapping={"oversized": "skip", "fixed_batch": 0.5}))
    window = changed.windows("test")[0]
    jobs, usual = changed.jobs(window, 0), Experiment(synthetic(metric=metric)).jobs(window, 0)
    fixed = [job.batch_size is not None for job in jobs]
    assert sum(fixed) == pytest.approx(len(jobs) / 2, abs=1)
    assert [job.model for job in jobs] == [job.model for job in usual]
    assert all(job == before for job, before in zip(jobs, usual, strict=True) if job.batch_size is None)
    assert np.isfinite(changed.run_policy(changed.policy("equal_share"), window, 0).jobs.finish_time).all()


def test_whatever_the_metric_the_jobs_have_the_same_work_and_other_times() -> None:
    experiments = [Experiment(synthetic(metric=metric)) for metric in ("goodput", "throughput")]
    window = experiments[0].windows("test")[0]
    jobs = [experiment.jobs(window, 0) for experiment in experiments]
    assert {job.metric for job in jobs[1]} == {"throughput"}
    assert [replace(job, metric="goodput") for job in jobs[1]] == jobs[0]
    policy = "equal_share"
    alone, longer = (x.run_policy(x.policy(policy), window, 0).jobs.alone_time for x in experiments)
    assert np.all(longer >= alone * (1 - 1e-9))
    assert longer.sum() > 1.01 * alone.sum()


def test_times_of_real_jobs_that_rest_on_guessed_speeds_are_left_out() -> None:
    config = load_config(CONFIGS / "ray_smoke.yaml")
    experiment = Experiment(config)
    assert experiment.guessed_models == set(config.ray.programs)
    record = experiment.run_policy(experiment.policy("fifo"), "jobs", 0)
    assert np.isfinite(record.jobs.alone_time).all()
    real = experiment.without_guesses(record)
    assert np.isnan(real.jobs.alone_time).all()
    assert np.isnan(real.jobs.requested_time).all()
    assert lower_bound(record)
    assert not lower_bound(real)


def test_a_trace_may_name_metrics_job_by_job(tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text(
        "name,time,application,num_replicas,batch_size,metric\n"
        "a,0,cifar10,4,0,throughput\nb,1,cifar10,4,0,\nc,2,cifar10,4,2048,efficiency\n"
    )
    workload = {
        "source": "files",
        "path": str(tmp_path / "w.csv"),
        "mapping": {"mode": "given"},
        "metric": "efficiency",
    }
    experiment = Experiment(Config.model_validate({"workload": workload}))
    jobs = experiment.jobs("w", 0)
    assert [(job.batch_size, job.metric) for job in jobs] == [
        (None, "throughput"),
        (None, "efficiency"),
        (2048, "efficiency"),
    ]


@pytest.mark.parametrize("load", [0.2, 1.5])
def test_the_load_is_as_wanted(load: float) -> None:
    config = synthetic(load=load, windows={"hours": 48, "train": 0, "validation": 0, "test": 1})
    trace = Experiment(config).workload.trace("test-000")
    assert trace.gpus.max() <= 16
    assert offered_load(trace.gpus, trace.duration, 16, 2 * 86_400.0) == pytest.approx(load, rel=0.05)


def test_noise_changes_what_policies_know_and_nothing_else() -> None:
    config = synthetic()
    noisy = config.model_copy(update={"knowledge": config.knowledge.model_copy(update={"mode": "noisy"})})
    window = Experiment(config).windows("test")[0]
    truth, noised = (Experiment(c).cluster(window, 0) for c in (config, noisy))
    assert truth.jobs == noised.jobs
    everything = np.arange(len(truth.jobs))
    exact, guessed = truth.table_of(everything), noised.table_of(everything)
    error = np.log(guessed.remaining / exact.remaining)
    assert np.all(error != 0)
    assert 0.1 < error.std() < 0.6
    np.testing.assert_array_equal(guessed.epochs, guessed.progress + guessed.remaining)


def test_only_programs_with_a_bound_let_policies_choose_batch_sizes() -> None:
    def choices(**bounds: int) -> dict[str, list[int]]:
        overrides = [f"ray.programs.{name}.largest_batch_size={bound}" for name, bound in bounds.items()]
        experiment = prepare(load_config(CONFIGS / "ray_smoke.yaml", overrides))
        tables = experiment.tables(["batch_sizes"])
        sizes = [(own.model, size) for own, size in zip(tables.types, tables.batch_size.tolist(), strict=True)]
        return {name: [size for model, size in sizes if model == name and size] for name in experiment.workload.models}

    assert choices() == {"digits_cnn": [], "digits_mlp": []}
    assert choices(digits_cnn=200) == {"digits_cnn": [64, 128, 200], "digits_mlp": []}


def test_a_job_that_does_not_fit_the_cluster_is_named() -> None:
    config = synthetic(mapping={"oversized": "error"}, load=None)
    experiment = Experiment(config.model_copy(update={"cluster": ClusterSettings(nodes=(NodeGroup(count=1, gpus=2),))}))
    with pytest.raises(JobError, match=r"job philly-\d+: wants \d+ GPUs, expected at most the 2 the cluster has"):
        experiment.check()


def test_what_decides_a_cell_is_in_its_outcome_and_nothing_else(tmp_path: Path) -> None:
    config = synthetic()
    outcome = Experiment(config).outcome()
    free = {"name": "other", "policies": ("las",), "evaluation": config.evaluation.model_copy(update={"seeds": 9})}
    free |= {"env": config.env.model_copy(update={"max_jobs": 9}), "agent": config.agent.model_copy(update={"seed": 9})}
    windows = config.workload.windows.model_copy(update={"limit": 1, "seed": 9})
    free |= {"workload": config.workload.model_copy(update={"windows": windows})}
    assert Experiment(config.model_copy(update=free)).outcome() == outcome
    assert Experiment(config.model_copy(update={"seed": 1})).outcome() != outcome
    files = drawn(tmp_path)
    outcomes = [Experiment(files).outcome()]
    for name in ("w-2.csv", "w-3.csv"):  # for training, for testing
        with (tmp_path / name).open("a") as file:
            file.write("\nlate,2500,cifar10,1,512\n")
        outcomes.append(Experiment(files).outcome())
    assert outcomes[0] != outcomes[1] != outcomes[2]


def test_files_of_a_provisioner_are_in_the_outcome_of_rented_nodes(tmp_path: Path) -> None:
    agent, demand = tmp_path / "agent.safetensors", tmp_path / "demand.safetensors"
    rented = ["cluster.nodes=[{gpus: 8, rented: {most: 2}}]", f"forecast.demand={demand}"]
    outcomes = []
    for texts in (("a", "a"), ("b", "a"), ("b", "b")):
        for file, text in zip((agent, demand), texts, strict=True):
            file.write_text(text)
        outcomes.append(Experiment(load_config("rented", [*rented, f"provision=agent:file={agent}"])).outcome())
    assert outcomes[0] != outcomes[1] != outcomes[2]


def test_a_report_counts_rented_nodes() -> None:
    nodes = "cluster.nodes=[{count: 2, gpus: 4}, {gpus: 8, rented: {least: 1, most: 3}}]"
    said = "2 nodes x 4 GPUs and 1 to 3 rented nodes x 8 GPUs, at most 32 GPUs in all"
    assert run_facts(load_config("rented", [nodes]))["Cluster"] == said


def test_settings_that_would_do_nothing_are_refused() -> None:
    settings = SimulatorSettings(change_batch_above=1.05)
    experiment = prepare(synthetic().model_copy(update={"simulator": settings}))
    with pytest.raises(ConfigError, match=r"change_batch_above: only jobs with knowledge\.mode online"):
        experiment.check_simulated()


def drawn(folder: Path, **changes: object) -> Config:
    """Windows drawn from three files of twelve jobs each, with the built-in profiles; `changes` to the workload."""
    for number in (1, 2, 3):
        rows = [f"job-{i},{i * 200 + number},cifar10,{1 + i % 4},{512}" for i in range(12)]
        (folder / f"w-{number}.csv").write_text("\n".join(["name,time,application,num_replicas,batch_size", *rows]))
    workload = {
        "source": "files",
        "path": str(folder / "w-3.csv"),
        "train_path": str(folder / "w-[12].csv"),
        "validation_path": [str(folder / "w-1.csv")],
        "draws": 3,
        "load": 0.4,
        "windows": {"hours": 2},
        "mapping": {"mode": "given"},
        **changes,
    }
    return Config.model_validate({"cluster": {"nodes": [{"count": 4, "gpus": 4}]}, "workload": workload})


def test_files_give_windows_for_every_split_at_the_wanted_load(tmp_path: Path) -> None:
    experiment = Experiment(drawn(tmp_path))
    assert experiment.windows("train") == ["w-1-00", "w-1-01", "w-1-02", "w-2-00", "w-2-01", "w-2-02"]
    assert experiment.windows("validation") == ["w-1-03", "w-1-04", "w-1-05"]  # the same file, other draws
    assert experiment.windows("test") == ["w-3-00", "w-3-01", "w-3-02"]
    for name, window in experiment.workload.windows.items():
        mapping = experiment.config.workload.mapping
        work = requested_work(experiment.workload.trace(name), experiment.tables(), mapping, 4)
        assert work.sum() / (16 * 7200) == pytest.approx(0.4, rel=0.2)
        assert window.end - window.start == 7200


def test_a_draw_depends_on_its_window_and_the_seed_of_the_config(tmp_path: Path) -> None:
    config = drawn(tmp_path)
    times = [
        {job.submit_time for job in Experiment(experiment).jobs(window, 0)}
        for experiment in (config, config.model_copy(update={"seed": 1}))
        for window in ("w-3-00", "w-3-01")
    ]
    assert all(not one & other for one, other in itertools.combinations(times, 2))
    again = {job.submit_time for job in Experiment(drawn(tmp_path)).jobs("w-3-00", 0)}
    assert again == times[0]


def test_the_work_of_a_named_job_is_its_time_on_its_requested_gpus(tmp_path: Path) -> None:
    """The estimate that draws are made by is what a run of the job alone really takes."""
    config = drawn(tmp_path, draws=0, load=None, train_path=[], validation_path=[])
    alone = {
        "simulator": config.simulator.model_copy(update={"rescale_delay": 0.0}),
        "cluster": ClusterSettings(nodes=(NodeGroup(count=12, gpus=4),)),  # a node for each job
    }
    experiment = Experiment(config.model_copy(update=alone))
    trace = experiment.workload.trace("w-3")
    work = requested_work(trace, experiment.tables(), config.workload.mapping, experiment.shape.gpus_per_node)
    jobs = experiment.run_policy(experiment.policy("fifo"), "w-3", 0).jobs
    seconds = jobs.finish_time - jobs.start_time
    np.testing.assert_allclose(work, seconds * trace.gpus, rtol=1e-6)


def test_files_are_windows_in_natural_order(tmp_path: Path) -> None:
    config = drawn(tmp_path, path=str(tmp_path / "w-*.csv"), draws=0, load=None, train_path=[], validation_path=[])
    (tmp_path / "w-10.csv").write_bytes((tmp_path / "w-1.csv").read_bytes())
    experiment = Experiment(config)
    assert experiment.windows() == ["w-1", "w-2", "w-3", "w-10"]
    assert experiment.jobs("w-2", 0)[0].submit_time == 2.0


def test_a_file_for_training_and_testing_is_refused(tmp_path: Path) -> None:
    config = drawn(tmp_path, train_path=[str(tmp_path / "w-*.csv")])
    with pytest.raises(ConfigError, match=r"workload\.train_path: .*w-3\.csv is also a test file"):
        Experiment(config).windows()
    whole = drawn(tmp_path, draws=0, load=None)
    with pytest.raises(ConfigError, match=r"workload\.validation_path: .*w-1\.csv: a second file called w-1"):
        Experiment(whole).windows()


def test_the_reward_greedy_policy_maximises_the_reward_of_the_experiment() -> None:
    config = Config.model_validate({"reward": {"resources": 0.5}})
    assert Experiment(config).policy("reward_greedy").options.weights == config.reward


@pytest.mark.parametrize(
    ("policy", "published"),
    [("tiresias", [2473.7, 5145.0, 3876.3, 3280.3]), ("optimus", [4087.1, 6913.9, 3944.0, 5967.8])],
)
def test_the_pollux_benchmark_gives_the_published_figures(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch, policy: str, published: list[float]
) -> None:
    """Mean JCT [s] of the four workloads by the authors of Pollux (OSDI 2021 artifact), to the digits given."""
    monkeypatch.setenv("RLPTO_DATA", str(shared_data))
    config = load_config(CONFIGS / "pollux.yaml", [f"policies=[{policy}]", f"evaluation.reference={policy}"])
    names = [f"workload-{number}" for number in (1, 2, 3, 4)]
    runs = [run_cell(config, cell).jobs for cell in prepare(config).cells() if cell.window in names]
    assert [np.mean(jobs.finish_time - jobs.submit_time) for jobs in runs] == pytest.approx(published, abs=0.06)


@pytest.mark.parametrize("name", ["fifo", "round_robin", "las", "tiresias", "equal_share", "random"])
def test_policies_that_read_no_speeds_decide_alike_whether_they_are_shown_or_not(name: str) -> None:
    config = synthetic().model_copy(update={"knowledge": ONLINE})
    experiment = Experiment(config)
    window = experiment.windows("test")[0]
    found = []
    for reads in (False, True):
        policy = experiment.policy(name)
        assert not reads_speeds(policy)
        policy.reads_speeds = reads
        jobs = experiment.run_policy(policy, window, 0).jobs
        found.append((jobs.finish_time.tolist(), jobs.rescales.tolist()))
    assert found[0] == found[1]


@pytest.mark.parametrize("first", ["t4", "a100"])
@pytest.mark.parametrize("other", ["count: 4", "price: 1, rented: {most: 4, boot: 120, idle: 0}"])
def test_a_waiting_job_counts_for_the_rented_nodes_that_it_may_use(tmp_path: Path, first: str, other: str) -> None:
    columns = {"submit_time": 300.0 * np.arange(8), "duration": np.full(8, 1800.0), "gpus": np.full(8, 2)}
    columns |= {"gpu_type": np.repeat("a100", 8)}
    write_trace(make_trace(columns, source="a test"), tmp_path / "jobs.parquet")
    of = {"t4": f"{{gpus: 4, gpu: t4, {other}}}"}
    of |= {"a100": "{gpus: 4, gpu: a100, price: 3, rented: {most: 4, boot: 120, idle: 0}}"}
    nodes = ", ".join(of[gpu] for gpu in sorted(of, key=lambda gpu: gpu != first))
    changes = [f"workload.path={tmp_path / 'jobs.parquet'}", f"cluster.nodes=[{nodes}]", "simulator.max_hours=null"]
    windows = "workload.windows={hours: 1, train: 0, validation: 0, test: 1}"
    experiment = Experiment(load_config("rented", [*changes, windows, "policies=[fifo@reactive]"]))
    record = experiment.run_policy(experiment.policy("fifo"), experiment.windows("test")[0], 0, spec="fifo@reactive")
    waited = record.jobs.start_time - record.jobs.submit_time
    assert (waited <= 180.0 + 1e-6).all(), "a decision, and a boot"
