"""Simulated against real: the comparison, and its sentences."""

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from rlpto.evaluation.fidelity import Fidelity, fidelity_table, simulated_against_real, verdicts
from rlpto.evaluation.metrics import measure
from rlpto.evaluation.record_files import record_bytes
from rlpto.evaluation.runner import Cell, FinishedCell
from rlpto.io.errors import ConfigError

from .helpers import tiny_record


def cell(folder: Path, policy: str, seed: int, *finish: float) -> FinishedCell:
    """A finished cell whose three jobs, submitted at 0, 0 and 50 s, finish then."""
    record = tiny_record(finish, policy=policy, seed=seed)
    path = folder / f"{policy}-{seed}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(record_bytes(record))
    return FinishedCell(Cell(policy, "w0", seed), measure(record), {}, path)


@pytest.fixture
def fidelity(tmp_path: Path) -> Fidelity:
    """Two repetitions of both policies, that differ for one job, real, under fifo."""
    ends = {"fifo": (110.0, 200.0, 350.0), "las": (90.0, 200.0, 390.0)}
    runs = [(policy, seed) for policy in ends for seed in (0, 1)]
    first = {run: 110.0 if run == ("fifo", 1) else 90.0 for run in runs}
    return simulated_against_real(
        [cell(tmp_path / "simulated", policy, seed, *ends[policy]) for policy, seed in runs],
        [cell(tmp_path / "real", policy, seed, first[policy, seed], 200.0, 350.0) for policy, seed in runs],
    )


def test_jobs_are_compared_by_their_means_over_repetitions_and_so_are_rankings(fidelity: Fidelity) -> None:
    assert fidelity.policies == ("las", "fifo")
    written = io.StringIO()
    Console(file=written, width=140).print(fidelity_table(fidelity))
    for part in ("+1.7 %", "203.3, 200.0", "0.0%, 10.0%"):
        assert part in written.getvalue()
    assert fidelity.jobs.loc[("fifo", "w0/a")].tolist() == pytest.approx([110.0, 100.0, 10.0, 0.1])
    assert fidelity.job_errors("fifo") == pytest.approx([0.0, 0.0, 0.1])
    assert fidelity.jobs.loc[("las", "w0/c")].tolist()[:2] == [340.0, 300.0]
    assert fidelity.metrics.loc[("fifo", "jct_mean")].tolist()[:2] == pytest.approx([610 / 3, 600 / 3])
    assert fidelity.metrics.loc[("las", "makespan"), "relative"] == pytest.approx(40 / 350)
    assert fidelity.ranking("jct_mean", real=True) == ("las", "fifo")
    assert fidelity.ranking("jct_mean", real=False) == ("fifo", "las")
    assert fidelity.agreeing_pairs("jct_mean") == (0, 1)
    sentences = verdicts(fidelity)
    assert sentences[0].startswith(
        "rankings by JCT mean differ (0 of 1 pairs agree): real las, fifo; simulated fifo, las"
    )
    assert sentences[1].startswith("both rank the policies the same by reward")


def test_jobs_that_only_one_of_them_finished_are_named_and_other_cells_refused(tmp_path: Path) -> None:
    simulated = [cell(tmp_path / "s", "fifo", 0, 100.0, 200.0, 350.0)]
    found = simulated_against_real(simulated, [cell(tmp_path / "r", "fifo", 0, 100.0, np.nan, 350.0)])
    assert found.unfinished == {"fifo": 1}
    assert found.jobs.index.tolist() == [("fifo", "w0/a"), ("fifo", "w0/c")]
    assert verdicts(found) == ["fifo: 1 jobs finished on one of the two only, and are not compared"]
    with pytest.raises(ConfigError, match="expected the same policies, windows and seeds"):
        simulated_against_real(simulated, [cell(tmp_path, "fifo", 1, 100.0, 200.0, 350.0)])
