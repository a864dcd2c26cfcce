"""`rlpto profile` and `evaluate --cluster both`, as far as they need no cluster."""

from pathlib import Path

import pandas as pd
import pytest

from rlpto.cli.profiles import measured_before
from rlpto.experiments.config import load_config
from rlpto.experiments.evaluate import run_cells
from rlpto.io.errors import ProfileError
from rlpto.performance.profiles import Profile, profiles_yaml
from rlpto.ray_cluster.measuring import Change, ProgramMeasurements, fit_program
from rlpto.ray_cluster.messages import Measured

EXPERIMENT = """
workload:
  source: jobs
  jobs: [{model: one}, {model: two}]
cluster: {nodes: [{count: 2, gpus: 2}]}
ray:
  programs:
    one: {training: "some.module:One", samples: 100, epochs: 3, batch_size: 10}
    two: {training: "some.module:Two", samples: 100, epochs: 3, batch_size: 10, pace: 0.1}
"""

MEASURED = ProgramMeasurements(
    sizes=(Measured(1, 1, 100.0, 50), Measured(2, 1, 190.0, 50)),
    changes=(Change("start", 1, 1, 4.0),),
    untrained=0.1,
    accuracy=((1.0, 0.5), (2.0, 0.6), (3.0, 0.65)),
    noise_scale=((1.0, 50.0),),
    complete=True,
)


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.yaml"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture
def profiles(experiment: Path) -> list[Profile]:
    """Profiles of both programs."""
    programs = load_config(experiment).ray.programs
    return [fit_program(name, programs[name], MEASURED, "a test") for name in programs]


@pytest.mark.slow
def test_only_what_is_not_measured_already_needs_a_cluster(
    rlpto, experiment: Path, profiles: list[Profile], tmp_path: Path
) -> None:
    out = tmp_path / "here.yaml"
    out.write_text(profiles_yaml(profiles))
    result = rlpto("profile", experiment, "-o", out)
    assert (result.code, "2 profiles in" in result.out, "one, two" in result.out) == (0, True, True)
    faster = load_config(experiment, ["ray.programs.two.pace=0.05"]).ray.programs
    assert measured_before(out, faster).keys() == {"one"}
    longer = load_config(experiment, ["ray.programs.one.epochs=4"]).ray.programs
    assert measured_before(out, longer).keys() == {"two"}
    out.write_text("- no profile\n")
    with pytest.raises(ProfileError, match=r"here\.yaml: expected a profile in YAML"):
        measured_before(out, faster)


def test_bad_input_is_one_line(rlpto, experiment: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("name: empty\n")
    for arguments, message in (
        (("profile", experiment, "-o", tmp_path / "folder"), "expected a file that ends in .yaml"),
        (("profile", empty, "-o", tmp_path / "a.yaml"), "ray.programs: there are none"),
        (("evaluate", experiment, "--cluster", "both"), "no profile of one, two; measure them with"),
        (("evaluate", experiment, "--cluster", "both", "--jobs", "2"), "expected 1"),
    ):
        rlpto(*arguments).assert_refused(message)
    assert sorted(tmp_path.iterdir()) == [empty, experiment]


@pytest.mark.slow
def test_both_compares_what_the_two_evaluations_say(
    rlpto, experiment: Path, profiles: list[Profile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_ray(config, folder, how):
        """The simulator in place of the real cluster, with steps that take longer."""
        assert (how.address, how.keep) == (None, False)
        slower = config.model_copy(update={"simulator": config.simulator.model_copy(update={"rescale_delay": 9.0})})
        return config, run_cells(slower, folder, fresh=how.fresh, progress=how.progress)

    monkeypatch.setattr("rlpto.experiments.on_ray.run_real_cells", without_ray)
    out, run = tmp_path / "here.yaml", tmp_path / "run"
    out.write_text(profiles_yaml(profiles))
    where = ("--cluster", "both", "--profiles", out, "--run-dir", run, "--policies", "fifo,las", "--no-report")
    answer = rlpto("evaluate", experiment, *where)
    assert answer.code == 0, answer
    assert "Simulated against real" in answer.out
    found = pd.read_csv(run / "fidelity_jobs.csv").set_index("policy")["difference"]
    for policy in ("fifo", "las"):  # they start 4 s after the command, there 9 s
        assert found[policy].tolist() == pytest.approx([-5.0, -5.0])
    metrics = pd.read_csv(run / "fidelity.csv").set_index(["policy", "metric"])["difference"]
    assert metrics["fifo", "jct_mean"] == pytest.approx(-5.0)
    assert (run / "real" / "cells.csv").is_file()
    assert (run / "simulated" / "cells.csv").is_file()
