"""The traces that come with RLPTO, and what is said and was measured of them."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rlpto.io.paths import trace_names
from rlpto.workloads.calibration import built_in_calibrations, load_calibration
from rlpto.workloads.describe import summary
from rlpto.workloads.files import read_any
from rlpto.workloads.importers import import_trace
from rlpto.workloads.synthetic import calibrate, generate
from rlpto.workloads.trace import Trace

JOBS = {"01": 1595, "02": 5778, "03": 3011, "04": 15802, "05": 3629, "07": 12699, "09": 11134, "10": 260}
CALIBRATIONS = [name for name in built_in_calibrations() if name.startswith("microsoft")]


def shipped(number: str) -> Trace:
    return read_any(Path(f"microsoft/cluster{number}"))


def test_they_have_the_published_numbers_of_jobs() -> None:
    assert trace_names() == [f"microsoft/cluster{number}" for number in JOBS]
    assert {number: len(shipped(number)) for number in JOBS} == JOBS
    assert sum(JOBS.values()) == 53_908


@pytest.mark.parametrize("number", JOBS)
def test_they_are_what_the_published_files_give(number: str, shared_data: Path) -> None:
    folder = shared_data / "traces" / "microsoft-2021"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is not there")
    imported = import_trace("microsoft", folder / f"cluster{number}.csv.gz").trace
    trace = shipped(number)
    pd.testing.assert_frame_equal(imported.jobs, trace.jobs)
    assert (imported.origin, imported.source) == (trace.origin, trace.source)


def test_the_page_has_their_figures() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "workloads.md").read_text(encoding="utf-8")
    for name in trace_names():
        figures = summary(read_any(Path(name)), 64)
        assert f"| `{name}` | {' | '.join(figures.values())} |" in page


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_calibrations_are_measured_on_them_and_generate_jobs_of_like_sizes(name: str) -> None:
    recorded, calibration = shipped(name[-2:]), load_calibration(name)
    assert calibration == calibrate(recorded, name, source=calibration.source)
    drawn = generate(calibration, 120.0, seed=1)
    shares = [[np.mean(trace.gpus == gpus) for gpus in (1, 2, 4, 8, 16, 32, 64)] for trace in (recorded, drawn)]
    np.testing.assert_allclose(shares[1], shares[0], atol=0.06)
    assert set(drawn.gpus) <= set(recorded.gpus)
