"""Broken files that users give: experiments, weights, calibrations, profiles, measurements, traces, counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rlpto.bench.leaderboard import entries_of, page
from rlpto.bench.submissions import verify
from rlpto.bench.suite import FIFO_FILE
from rlpto.core.jobs import FinishedJob, Job
from rlpto.experiments.config import load_config, resolved_yaml
from rlpto.experiments.sweep import read_space
from rlpto.io.settings_text import described_yaml
from rlpto.performance.compile import compile_tables
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.measurements import read_measurements
from rlpto.performance.profiles import builtin_profiles, load_file, profile_yaml
from rlpto.performance.tables import JobType
from rlpto.policies.index_weights import (
    WEIGHT_NAMES,
    load_index_weights,
    save_index_weights,
)
from rlpto.workloads.arrival_counts import arrivals_per_interval, read_series
from rlpto.workloads.calibration import load_calibration
from rlpto.workloads.describe import tables
from rlpto.workloads.files import read_any
from rlpto.workloads.frozen import FrozenJobs, digest_of, read_jobs, write_jobs
from rlpto.workloads.importers import detect_format, import_trace
from rlpto.workloads.synthetic import generate
from rlpto.workloads.trace import make_trace, read_trace, write_trace
from tests.fuzz.harness import Draw, fuzzed, put_file
from tests.fuzz.mutations import broken_bytes, broken_text, broken_yaml
from tests.workloads.test_importers import SAMPLES

CONFIGS = sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))


@fuzzed()
def test_config(draw: Draw, folder: Path) -> None:
    text = draw(st.sampled_from(CONFIGS)).read_text(encoding="utf-8")
    config = load_config(put_file(folder, "exp.yaml", draw(broken_yaml(text))))
    resolved = put_file(folder, "resolved.yaml", resolved_yaml(config).encode())
    assert load_config(resolved) == config, "a resolved configuration reads back otherwise"


@fuzzed()
def test_index_weights(draw: Draw, folder: Path) -> None:
    path = folder / "weights.yaml"
    save_index_weights(np.zeros(len(WEIGHT_NAMES)), path)
    path.write_bytes(draw(broken_yaml(path.read_text())))
    assert np.isfinite(load_index_weights(path)).all()


@fuzzed()
def test_calibration(draw: Draw, folder: Path) -> None:
    text = described_yaml(load_calibration("philly"))
    generate(load_calibration(put_file(folder, "like.yaml", draw(broken_yaml(text)))), 0.1, 0)


@fuzzed()
def test_profile(draw: Draw, folder: Path) -> None:
    text = profile_yaml(builtin_profiles()["cifar10"])
    profiles = load_file(put_file(folder, "profiles.yaml", draw(broken_yaml(text))))
    for name in profiles:
        compile_tables(FittedProfiles(profiles), [JobType(name)], 8, 4)


MEASURED = {
    "placements.csv": "placement,local_bsz,step_time,sync_time\n"
    + "".join(
        f"{place},{size},{0.1 * size},{0.01 * len(str(place))}\n" for place in (1, 2, 11, 22) for size in (8, 16)
    ),
    "scalability.csv": "num_nodes,num_replicas,local_bsz,step_time,sync_time\n4,16,8,1.0,0.2\n4,16,16,1.5,0.3\n",
    **{
        f"validation-{batch}.csv": "progress,iteration,metric,grad_sqr,grad_var\n"
        + "".join(f"{10 * i},{10 * i},{0.1 * i},1.0,2.0\n" for i in range(1, 5))
        for batch in (8, 32)
    },
}


@fuzzed()
def test_measurements(draw: Draw, folder: Path) -> None:
    broken = draw(st.sampled_from(list(MEASURED)))
    for name, text in MEASURED.items():
        put_file(folder, name, draw(broken_text(text)) if name == broken else text.encode())
    read_measurements(folder)


@fuzzed(share=3)
def test_trace_text(draw: Draw, folder: Path) -> None:
    name = draw(st.sampled_from(list(SAMPLES)))
    path = put_file(folder, "trace.log", draw(broken_text(SAMPLES[name])))
    known = draw(st.sampled_from([True, True, True, False]))
    _use(import_trace(name if known else detect_format(path), path, draw(st.booleans())).trace, folder)


def _use(trace: Any, folder: Path) -> None:
    """Everything that a trace is used for at once."""
    tables(trace, 8)
    arrivals_per_interval(trace, 600.0)
    write_trace(trace, folder / "out.parquet")
    assert len(read_trace(folder / "out.parquet")) == len(trace), "a trace reads back otherwise"


@fuzzed()
def test_trace_parquet(draw: Draw, folder: Path) -> None:
    path = folder / "trace.parquet"
    columns = {"name": ["a", "b"], "submit_time": [0.0, 5.0], "duration": [1.0, np.nan], "gpus": [1, 2]}
    write_trace(make_trace(columns, "fuzz"), path)
    path.write_bytes(draw(broken_bytes(path.read_bytes())))
    _use(read_any(path), folder)


@fuzzed()
def test_frozen_jobs(draw: Draw, folder: Path) -> None:
    path = folder / "jobs.parquet"
    jobs = [Job("a", 0.0, "ncf", 1.0, 5.0), Job("b", 1.0, "bert", 2.0, 5.0, batch_size=48)]
    write_jobs(FrozenJobs({"w": jobs}, {"w": [FinishedJob(jobs[0].type, "ann", 1.0)]}), path)
    path.write_bytes(draw(broken_bytes(path.read_bytes())))
    digest_of(read_jobs(path))


@fuzzed()
def test_submission(draw: Draw, folder: Path) -> None:
    card, results = "name: mine\npolicies: [fifo]\nauthor: me\nsuite: 1\n", FIFO_FILE.read_text().splitlines()[:12]
    (folder / "mine").mkdir()
    first = draw(st.booleans())
    put_file(folder / "mine", "card.yaml", draw(broken_yaml(card)) if first else card.encode())
    text = "\n".join(results) + "\n"
    put_file(folder / "mine", "results.csv", text.encode() if first else draw(broken_text(text)))
    page(entries_of([folder])[0])
    list(verify(folder / "mine", share=0.0))


COUNTS = "time,count\n" + "".join(f"2020-04-01 {hour:02d}:00:00,{hour}\n" for hour in range(24))


@fuzzed()
def test_counts(draw: Draw, folder: Path) -> None:
    path = put_file(folder, "counts.csv", draw(broken_text(COUNTS)))
    read_series(path, "1h", value="count")


SPACE = "agent.ppo.learning_rate: {low: 1.0e-5, high: 1.0e-3, log: true}\nagent.network.width: [16, 32]\n"


@fuzzed()
def test_search_space(draw: Draw, folder: Path) -> None:
    read_space(put_file(folder, "space.yaml", draw(broken_yaml(SPACE))))
