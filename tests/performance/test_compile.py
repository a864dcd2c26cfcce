from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlpto.io.errors import ProfileError
from rlpto.performance.compile import chosen_batch_sizes, compile_tables, load_profiles
from rlpto.performance.efficiency import BatchLimits, choose_batch
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.measured import MeasuredProfiles
from rlpto.performance.profiles import builtin_profiles, load_file, profile_yaml
from rlpto.performance.tables import JobType, SpeedTables


@pytest.fixture(scope="module")
def fitted() -> FittedProfiles:
    return FittedProfiles(builtin_profiles())


@pytest.fixture(scope="module")
def tables(fitted: FittedProfiles) -> SpeedTables:
    types = [*(JobType(model) for model in fitted.models), JobType("cifar10", 2048), JobType("bert", 384)]
    return compile_tables(fitted, types, 130, 4)


def test_rates_are_goodput_by_samples(tables: SpeedTables, fitted: FittedProfiles) -> None:
    profile = fitted.profile("imagenet")
    useful = choose_batch(profile.throughput, profile.noise(np.arange(90)), profile.batch, 2, 16, None).progress
    i = tables.type_index(JobType("imagenet"))
    np.testing.assert_allclose(tables.rates[tables.row[i, 0, 4], :90], useful[0, 3] / profile.samples)
    np.testing.assert_allclose(tables.rates[tables.row[i, 1, 16], :90], useful[1, 15] / profile.samples)


def test_a_job_never_gets_slower_for_gpus_its_batch_has_no_use_for(tables: SpeedTables) -> None:
    # 384 samples with at least 4 on each of 96 GPUs.
    row = tables.row[tables.type_index(JobType("bert", 384)), 1]
    np.testing.assert_array_equal(tables.rates[row[97:]], tables.rates[row[96:97]].repeat(34, axis=0))


def test_sizes_that_cannot_be_take_the_nearest(tables: SpeedTables) -> None:
    assert np.all(tables.row[:, 1, 1] == tables.row[:, 0, 1])
    assert np.all(tables.row[:, 0, 5:] == tables.row[:, 1, 5:])
    assert np.all(tables.row[:, 0, 2:5] != tables.row[:, 1, 2:5])


def test_types_that_make_no_sense_are_refused(fitted: FittedProfiles) -> None:
    with pytest.raises(ProfileError, match="cifar10: batch_size 100, expected 128 to 4096"):
        compile_tables(fitted, [JobType("cifar10", 100)], 8, 4)
    limits = BatchLimits(base=10, largest=13, min_local=10, max_local=12)
    odd = FittedProfiles({"cifar10": replace(fitted.profile("cifar10"), batch=limits, gpu_types={})})
    with pytest.raises(ProfileError, match="cifar10: batch_size 13 cannot be split"):
        compile_tables(odd, [JobType("cifar10")], 8, 4)
    with pytest.raises(ProfileError, match="no profile of model 'gpt'; known: bert, cifar10"):
        compile_tables(fitted, [JobType("gpt")], 8, 4)
    with pytest.raises(ProfileError, match="no job types"):
        compile_tables(fitted, [], 8, 4)
    with pytest.raises(ProfileError, match="at least 1 GPU"):
        compile_tables(fitted, [JobType("bert")], 0, 4)


def test_profiles_load_from_what_a_folder_holds(measured_folder: Path, tmp_path: Path) -> None:
    assert isinstance(load_profiles(None), FittedProfiles)
    assert isinstance(load_profiles(measured_folder), MeasuredProfiles)
    own = tmp_path / "own"
    own.mkdir()
    profile = replace(builtin_profiles()["bert"], name="mine")
    (own / "x.yaml").write_text(profile_yaml(profile))
    assert load_profiles(str(own)).models == ("mine",)
    assert load_profiles(next(own.glob("*.yaml"))).models == ("mine",)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProfileError, match="expected profiles"):
        load_profiles(tmp_path / "empty")
    with pytest.raises(ProfileError, match="no such folder"):
        load_profiles(tmp_path / "none")


class TestBatchSizes:
    """Batch sizes that a scheduler may choose."""

    TYPES = (JobType("cifar10"), JobType("cifar10", 2048), JobType("bert", 384))

    def test_each_has_the_speed_of_a_job_with_that_size(self, fitted: FittedProfiles) -> None:
        plain = compile_tables(fitted, self.TYPES, 16, 4)
        tables = compile_tables(fitted, self.TYPES, 16, 4, choose_batches=True)
        assert tables.types[:3] == plain.types
        np.testing.assert_array_equal(tables.row[:3], plain.row)
        job_type = int(tables.types_at(np.array([0]), np.array([2048]))[0])
        np.testing.assert_array_equal(tables.rates[tables.row[job_type]], tables.rates[tables.row[1]])
        assert tables.types_at(np.array([job_type, job_type]), np.array([0, 256])).tolist() == [
            0,
            int(tables.types_at(np.array([0]), np.array([256]))[0]),
        ]

    @pytest.mark.parametrize(
        ("largest", "bound", "choices"),
        [
            (128, 512, [128, 256, 512]),
            (512, 300, [128, 256, 300]),  # jobs themselves may go beyond
            (512, 128, [128]),
            (512, 100, []),
            (512, 0, []),
        ],
    )
    def test_what_a_scheduler_may_choose_is_bounded_beside_what_jobs_choose_themselves(
        self, fitted: FittedProfiles, largest: int, bound: int, choices: list[int]
    ) -> None:
        profile = fitted.profile("cifar10")
        profile = replace(profile, batch=replace(profile.batch, base=128, largest=largest, min_local=32))
        source = FittedProfiles({"cifar10": profile}).choosing({"cifar10": bound})
        assert chosen_batch_sizes(source, JobType("cifar10")) == choices
        compiled = compile_tables(source, [JobType("cifar10"), JobType("cifar10", largest)], 4, 4, choose_batches=True)
        own = [size for size in choices if size != largest]
        assert compiled.batch_size.tolist() == [0, 0, *choices, *own]

    def test_measurements_are_bounded_likewise(self, shared_data: Path) -> None:
        source = MeasuredProfiles(shared_data / "profiles").choosing({"cifar10": 512, "ncf": 0})
        assert chosen_batch_sizes(source, JobType("cifar10")) == [128, 256, 512]
        assert chosen_batch_sizes(source, JobType("ncf")) == []
        assert chosen_batch_sizes(source, JobType("bert"))


GPU_TYPES = ("t4", "a100", "rtx2080ti", "quad", "azure")
TYPES = [JobType("cifar10"), JobType("yolov3")]


def test_built_in_profiles_know_five_kinds_and_what_has_no_name_is_as_before() -> None:
    for name, profile in builtin_profiles().items():
        assert tuple(profile.gpu_types) == GPU_TYPES, name
        assert profile.on("gpu") is profile
        assert profile.on("t4").throughput == profile.throughput
        assert profile.on("t4").batch == profile.batch
        assert profile.on("a100").batch.max_local >= profile.batch.max_local


def test_one_kind_is_to_the_last_digit_what_it_was(fitted: FittedProfiles) -> None:
    before, named = (compile_tables(fitted, TYPES, 8, 4, gpu_types=gpu_types) for gpu_types in (None, {"t4": 4}))
    for name in ("rates", "row", "accuracy", "own", "batch_size", "gpu_type"):
        assert np.array_equal(getattr(before, name), getattr(named, name)), name
    assert np.array_equal(before.packed_rows(4), named.packed_rows(4))


@pytest.mark.parametrize("choose_batches", [False, True])
def test_every_type_has_a_variant_on_every_kind(fitted: FittedProfiles, choose_batches: bool) -> None:
    gpu_types = {"rtx2080ti": 8, "t4": 4}
    tables = compile_tables(fitted, TYPES, 8, 8, choose_batches=choose_batches, gpu_types=gpu_types)
    for number, (gpu_type, size) in enumerate(gpu_types.items()):
        alone = compile_tables(fitted, TYPES, 8, size, choose_batches=choose_batches, gpu_types={gpu_type: size})
        own = np.flatnonzero(tables.gpu_type == number)
        assert np.array_equal(tables.by_gpu_type[own, number], own)
        rates, packed = tables.rates[tables.packed_rows(8)[own]], alone.rates[alone.packed_rows(size)]
        assert np.array_equal(rates, packed)
    other = tables.by_gpu_type[:, 1]
    assert (tables.gpu_type[other] == 1).all()
    assert np.array_equal(tables.own[other], tables.own)
    assert np.array_equal(tables.batch_size[other], tables.batch_size)
    assert np.array_equal(tables.gpu_type[tables.batch_choices[:, 0]], tables.gpu_type), "chosen on a GPU type"
    assert all(variants[0] == own for variants, own in zip(tables.variants, tables.own, strict=True))


def test_a_profile_without_kinds_serves_all_alike(tmp_path: Path) -> None:
    plain = {name: replace(profile, gpu_types={}) for name, profile in builtin_profiles().items()}
    tables = compile_tables(FittedProfiles(plain), TYPES, 8, 4, gpu_types={"any": 4, "thing": 4})
    rates = tables.rates[tables.packed_rows(4)]
    assert np.array_equal(rates[tables.by_gpu_type[:, 0]], rates[tables.by_gpu_type[:, 1]])
    path = tmp_path / "plain.yaml"
    path.write_text(profile_yaml(plain["cifar10"]))
    assert "gpu_types" not in path.read_text()
    assert load_file(path)["cifar10"] == plain["cifar10"]


def test_a_wrong_kind_is_named_with_its_key(tmp_path: Path) -> None:
    profile, path = builtin_profiles()["bert"], tmp_path / "bert.yaml"
    path.write_text(profile_yaml(replace(profile, gpu_types={})) + "gpu_types: {new: {throughput: {alpha_c: fast}}}\n")
    with pytest.raises(ProfileError, match=r"gpu_types\.new\.throughput\.alpha_c"):
        load_file(path)
    path.write_text(profile_yaml(profile).replace("max_local: 48", "max_local: 1"))
    with pytest.raises(ProfileError, match="gpu_types: a100: max_local 1 is below min_local 4"):
        load_file(path)


class TestMeasured:
    def test_steps_of_every_kind(self, shared_data: Path) -> None:
        profiles = load_profiles(shared_data / "sia" / "traces")
        assert profiles.models == ("bert", "cifar10", "deepspeech2", "imagenet", "yolov3")
        tables = compile_tables(profiles, [JobType("bert")], 8, 8, gpu_types={"aws": 4, "dgx-ext": 8, "rtx": 8})
        one_gpu = tables.rates[tables.packed_rows(8)[:, 1], 0]
        assert one_gpu[0] < one_gpu[2] < one_gpu[1], "T4, 2080 Ti, A100"
        assert profiles.facts("deepspeech2").batch.max_local == 320

    def test_a_kind_that_was_not_measured_is_named(self, shared_data: Path) -> None:
        profiles = load_profiles(shared_data / "sia" / "traces")
        for gpu_types in ({"aws": 4, "h100": 8}, {"gpu": 4}):
            with pytest.raises(ProfileError, match=f"type {list(gpu_types)[-1]!r}.*expected one of aws, dgx-ext, rtx"):
                compile_tables(profiles, [JobType("bert")], 8, 8, gpu_types=gpu_types)
