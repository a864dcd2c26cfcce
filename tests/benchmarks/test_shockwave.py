"""The study of Shockwave's published runs: what jobs train, and one policy on the published trace."""

import sys
from pathlib import Path

import numpy as np
import pytest

from rlpto.evaluation.metrics import measure

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import _study_shockwave as shockwave

SPEEDS = {("LM", 1): {5: 100.0, 10: 90.0, 20: 70.0, 40: 50.0, 80: 25.0}}


@pytest.mark.parametrize("mode", ["static", "accordion", "gns"])
def test_batches_grow_earlier_than_fairness_is_judged_by(mode: str) -> None:
    one = shockwave.Submitted("LM", 20, 60 * 2984, 1, mode, 0.0)
    trained, judged = (shockwave.trained(one, SPEEDS, judged=which).batches for which in (False, True))
    changes = {"static": ([], []), "accordion": ([9], [19]), "gns": ([9, 39], [11, 41])}[mode]
    assert [(np.flatnonzero(np.diff(each)) + 1).tolist() for each in (trained, judged)] == list(changes)


def test_max_min_fairness_comes_to_the_published_figures(shared_data: Path) -> None:
    folder = shared_data / "shockwave"
    submitted, speeds = shockwave.read_trace(folder / shockwave.TRACE), shockwave.read_speeds(folder)
    models = {str(number): shockwave.trained(one, speeds, judged=False) for number, one in enumerate(submitted)}
    found = measure(shockwave.replay(submitted, models, f"gavel:{shockwave.SPEC}"))
    assert found["makespan"] == pytest.approx(33_208, rel=0.03)
    assert found["jct_mean"] == pytest.approx(11_274, rel=0.03)
