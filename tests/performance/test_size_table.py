"""The law `table`, and the profiles of large models that use it."""

from pathlib import Path

import numpy as np
import pytest

from rlpto.io.errors import ProfileError
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.profiles import large_profiles, load_file, profile_yaml
from rlpto.performance.size_table import SizeTable
from rlpto.performance.tables import JobType


def test_measured_sizes_are_as_measured_and_those_between_in_between() -> None:
    table = SizeTable(((1, 4, 8.0), (1, 8, 5.0), (2, 16, 3.0)))
    assert table.step_time([1, 1, 2], [4, 8, 16], 1) == pytest.approx([8.0, 5.0, 3.0])
    assert table.step_time(1, 6, 1) == pytest.approx(5.0 * (8 / 6) ** (np.log(8 / 5) / np.log(2)))
    assert table.step_time(1, 4, 1, 2) == pytest.approx(24.0), "two more gradient computations"
    assert table.floor_size(20).tolist() == [0] * 4 + [4] * 4 + [8] * 8 + [16] * 5


@pytest.mark.parametrize(
    ("law", "said"),
    [
        ("steps: [[1, 8, 2.0], [1, 4, 3.0]]", "4 GPUs after 8, expected ascending"),
        ("steps: [[8, 4, 3.0]]", "4 GPUs on 8 nodes, expected a GPU or more a node"),
        ("steps: []", "throughput.steps"),
        ("steps: [[1, 4, 3.0], [1, 8, 2.0]], allowed: [4, 16]", "allowed: 16 GPUs, expected 4 to 8"),
    ],
)
def test_a_wrong_table_is_named_with_file_and_key(tmp_path: Path, law: str, said: str) -> None:
    text = profile_yaml(large_profiles()["mpt-125m"])
    path = tmp_path / "mine.yaml"
    path.write_text(text[: text.index("gpu_types:")] + f"gpu_types:\n  h100:\n    throughput: {{law: table, {law}}}\n")
    with pytest.raises(ProfileError, match=r"mine\.yaml") as error:
        load_file(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


class TestShippedProfiles:
    def test_name_their_source_and_licence(self) -> None:
        profiles = large_profiles()
        assert len(profiles) >= 30
        for profile in profiles.values():
            assert any(licence in profile.source for licence in ("Apache-2.0", "MIT")), profile.name
            assert profile.tables(), profile.name
        gpu_types = {gpu_type for profile in profiles.values() for gpu_type in profile.tables()}
        assert {"a100", "v100", "a40", "a10", "a800", "h100", "h200", "b200", "gb200", "gb300"} <= gpu_types

    def test_speeds_of_allowed_sizes_are_those_measured_and_without_a_table_it_does_not_fit(self) -> None:
        source = load_profiles("llm")
        tables = compile_tables(source, [JobType("mpt-30b")], 128, 8, gpu_types={"h100": 8, "a100": 8})
        profile = source.profiles["mpt-30b"]
        for gpu_type, name in enumerate(tables.gpu_types):
            law = profile.tables()[name]
            assert set(np.unique(tables.floor_size[gpu_type])) == {0, *(size for size in law.sizes if size <= 128)}
            for nodes, gpus, seconds in law.steps:
                if gpus <= 128:
                    rate = tables.rates[tables.packed_rows(8)[gpu_type, gpus], 0] * profile.samples
                    assert rate == pytest.approx(profile.batch.base / seconds, rel=1e-3), (name, nodes, gpus)

        tables = compile_tables(load_profiles("llm"), [JobType("mpt-125m")], 16, 8, gpu_types={"v100": 8, "a100": 8})
        assert tables.floor_size.max(axis=1).tolist() == [0, 16]
        assert tables.floor_size_anywhere.max(axis=1).tolist() == [16, 16]
