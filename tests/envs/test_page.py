"""docs/environment.md has the tables of actions and observations; `python -m tests.envs.test_page` writes them."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rlpto.envs.actions import ACTION_FEATURES, LARGEST, STEP
from rlpto.envs.batch import EnvBatch
from rlpto.envs.features import CLUSTER_TABLE, JOB_TABLE, Feature
from rlpto.envs.observation import LIMIT
from rlpto.io.markdown import markdown_table
from rlpto.policies.index_weights import FURTHER, IndexWeights
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

from .builders import make_setup

PAGE = Path(__file__).parents[2] / "docs" / "environment.md"


def range_of(feature: Feature) -> tuple[float, float]:
    """The range that a description means, see `rlpto.envs.features`."""
    said = feature.description
    if re.match(r"share|1 ", said):
        return 0.0, 1.0
    return (-LIMIT if re.search(r"log2?\((?!1 \+)", said) else 0.0), LIMIT


def actions() -> list[dict[str, object]]:
    said = {name: field.description for name, field in IndexWeights.model_fields.items()} | FURTHER
    return [
        {"": i, "weight": f"`{name}`", "of": said[name], "moved by 1 / at most": f"{step:g} / {LARGEST * step:g}"}
        for i, (name, step) in enumerate(STEP.items())
    ]


def features(table: Sequence[Feature]) -> list[dict[str, object]]:
    return [
        {"": i, "name": f"`{one.name}`", "meaning": one.description, "range": "{:g} to {:g}".format(*range_of(one))}
        for i, one in enumerate(table)
    ]


def with_tables(page: str) -> str:
    """The page with the tables as the code has them now."""
    tables = {"actions": actions(), "jobs": features(JOB_TABLE), "cluster": features(CLUSTER_TABLE)}
    for mark, rows in tables.items():
        block = "\n".join([f"<!-- begin: {mark} -->", *markdown_table(rows), f"<!-- end: {mark} -->"])
        page, found = re.subn(
            rf"<!-- begin: {mark} -->.*<!-- end: {mark} -->", lambda _, block=block: block, page, flags=re.S
        )
        assert found == 1, f"{PAGE}: expected the marks of {mark} once"
    return page


def test_the_page_has_the_tables_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_tables(page) == page, "python -m tests.envs.test_page writes the tables again"
    assert list(STEP) == list(ACTION_FEATURES)


@pytest.mark.parametrize("noisy", [False, True])
def test_observations_are_in_the_ranges_of_the_page(noisy: bool) -> None:
    failing = SimulatorSettings(failures=FailureSettings(mtbf_hours=1.0, mttr_hours=0.1))
    batch = EnvBatch(make_setup(noisy=noisy, simulator=failing, baseline="none", max_jobs=4), 4)
    batch.reset()
    rng = np.random.default_rng(0)
    for _ in range(60):
        seen = batch.step(rng.normal(0, 2, (4, len(ACTION_FEATURES)))).observation
        for table, values in ((JOB_TABLE, seen.jobs.reshape(-1, len(JOB_TABLE))), (CLUSTER_TABLE, seen.cluster)):
            for feature, column in zip(table, values.T, strict=True):
                low, high = range_of(feature)
                assert low <= column.min() <= column.max() <= high, feature.name


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
