"""Profiles and speed tables of several kinds of GPU."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlpto.io.errors import ProfileError
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.profiles import builtin_profiles, load_file, profile_yaml
from rlpto.performance.tables import JobType

KINDS = ("t4", "a100", "rtx2080ti", "quad", "azure")
TYPES = [JobType("cifar10"), JobType("yolov3")]


def test_built_in_profiles_know_five_kinds_and_what_has_no_name_is_as_before() -> None:
    for name, profile in builtin_profiles().items():
        assert tuple(profile.kinds) == KINDS, name
        assert profile.on("gpu") is profile
        assert profile.on("t4").throughput == profile.throughput
        assert profile.on("t4").batch == profile.batch
        assert profile.on("a100").batch.max_local >= profile.batch.max_local


def test_one_kind_is_to_the_last_digit_what_it_was() -> None:
    profiles = FittedProfiles(builtin_profiles())
    before, named = (compile_tables(profiles, TYPES, 8, 4, kinds=kinds) for kinds in (None, {"t4": 4}))
    for name in ("rates", "row", "accuracy", "own", "batch_size", "kind"):
        assert np.array_equal(getattr(before, name), getattr(named, name)), name
    assert np.array_equal(before.packed_rows(4), named.packed_rows(4))


@pytest.mark.parametrize("choose_batches", [False, True])
def test_every_type_has_a_variant_on_every_kind(choose_batches: bool) -> None:
    profiles = FittedProfiles(builtin_profiles())
    kinds = {"rtx2080ti": 8, "t4": 4}
    tables = compile_tables(profiles, TYPES, 8, 8, choose_batches=choose_batches, kinds=kinds)
    for number, (kind, size) in enumerate(kinds.items()):
        alone = compile_tables(profiles, TYPES, 8, size, choose_batches=choose_batches, kinds={kind: size})
        own = np.flatnonzero(tables.kind == number)
        assert np.array_equal(tables.by_kind[own, number], own)
        rates, packed = tables.rates[tables.packed_rows(8)[own]], alone.rates[alone.packed_rows(size)]
        assert np.array_equal(rates, packed)
    other = tables.by_kind[:, 1]
    assert (tables.kind[other] == 1).all()
    assert np.array_equal(tables.own[other], tables.own)
    assert np.array_equal(tables.batch_size[other], tables.batch_size)
    assert np.array_equal(tables.kind[tables.batch_choices[:, 0]], tables.kind), "a batch size is chosen on a kind"
    assert all(variants[0] == own for variants, own in zip(tables.variants, tables.own, strict=True))


def test_a_profile_without_kinds_serves_all_alike(tmp_path: Path) -> None:
    plain = {name: replace(profile, kinds={}) for name, profile in builtin_profiles().items()}
    tables = compile_tables(FittedProfiles(plain), TYPES, 8, 4, kinds={"any": 4, "thing": 4})
    rates = tables.rates[tables.packed_rows(4)]
    assert np.array_equal(rates[tables.by_kind[:, 0]], rates[tables.by_kind[:, 1]])
    path = tmp_path / "plain.yaml"
    path.write_text(profile_yaml(plain["cifar10"]))
    assert "kinds" not in path.read_text()
    assert load_file(path)["cifar10"] == plain["cifar10"]


def test_a_wrong_kind_is_named_with_its_key(tmp_path: Path) -> None:
    profile, path = builtin_profiles()["bert"], tmp_path / "bert.yaml"
    path.write_text(profile_yaml(replace(profile, kinds={})) + "kinds: {new: {throughput: {alpha_c: fast}}}\n")
    with pytest.raises(ProfileError, match=r"kinds\.new\.throughput\.alpha_c"):
        load_file(path)
    path.write_text(profile_yaml(profile).replace("max_local: 48", "max_local: 1"))
    with pytest.raises(ProfileError, match="kinds: a100: max_local 1 is below min_local 4"):
        load_file(path)


class TestMeasured:
    def test_steps_of_every_kind(self, shared_data: Path) -> None:
        profiles = load_profiles(shared_data / "sia" / "traces")
        assert profiles.models == ("bert", "cifar10", "deepspeech2", "imagenet", "yolov3")
        tables = compile_tables(profiles, [JobType("bert")], 8, 8, kinds={"aws": 4, "dgx-ext": 8, "rtx": 8})
        one_gpu = tables.rates[tables.packed_rows(8)[:, 1], 0]
        assert one_gpu[0] < one_gpu[2] < one_gpu[1], "T4, 2080 Ti, A100"
        assert profiles.facts("deepspeech2").batch.max_local == 320

    def test_a_kind_that_was_not_measured_is_named(self, shared_data: Path) -> None:
        profiles = load_profiles(shared_data / "sia" / "traces")
        for kinds in ({"aws": 4, "h100": 8}, {"gpu": 4}):
            with pytest.raises(ProfileError, match=f"kind {list(kinds)[-1]!r}.*expected one of aws, dgx-ext, rtx"):
                compile_tables(profiles, [JobType("bert")], 8, 8, kinds=kinds)
