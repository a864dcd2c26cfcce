"""Compile profiles to speed tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import ProfileError
from rlpto.io.files import file_there, folder_there
from rlpto.performance.efficiency import useful_gpus
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.profiles import (
    ProfileSource,
    TypeTables,
    builtin_profiles,
    load_file,
    load_folder,
    shipped_folder,
)
from rlpto.performance.tables import (
    ANY_GPU,
    MAX_EXACT_GROUPS,
    MAX_EXACT_TYPES,
    NO_GPUS,
    JobType,
    SpeedTables,
    elapsed_from_rates,
    placement_key,
)

if TYPE_CHECKING:
    from rlpto.performance.measured import MeasuredProfiles


def load_profiles(folder: str | Path | None) -> FittedProfiles | MeasuredProfiles:
    """Load the source of profiles at a path.

    Without a path: the built-in profiles. A missing path named `llm`: the shipped large models. A file, or a folder
    with `*.yaml`: its fitted profiles. A folder whose sub-folders contain a `placements.csv`, or a
    `placements-TYPE.csv` for each GPU type: interpolated measurements. Raises ProfileError for anything else, or if a
    profile is broken.
    """
    if folder is None:
        return FittedProfiles(builtin_profiles())
    path = shipped_folder(Path(folder))
    if file_there(path):
        return FittedProfiles(load_file(path))
    if not folder_there(path):
        raise ProfileError(f"{path}: no such folder; expected one of profiles (*.yaml) or of measurements")
    if any(path.glob("*.yaml")):
        return FittedProfiles(load_folder(path))
    if any(path.glob("*/placements*.csv")):
        from rlpto.performance.measured import MeasuredProfiles

        return MeasuredProfiles(path)
    raise ProfileError(f"{path}: expected profiles (*.yaml) or sub-folders of measurements with a placements.csv")


@dataclass(frozen=True, slots=True)
class Variant:
    """A job type as a scheduler may run it.

    job_type: the type, with the batch size and parameter servers that apply. own: number of the type with which jobs
    are submitted. chosen_batch: batch size [samples] that the scheduler has chosen; 0 if the job chooses.
    """

    job_type: JobType
    own: int
    chosen_batch: int = 0


def compile_tables(
    profiles: ProfileSource,
    types: Sequence[JobType],
    max_gpus: int,
    gpus_per_node: int,
    *,
    choose_batches: bool = False,
    choose_servers: bool = False,
    gpu_types: Mapping[str, int] | None = None,
) -> SpeedTables:
    """Compile speed tables of job types for up to `max_gpus` GPUs on nodes of `gpus_per_node`.

    choose_batches: add variants for the batch sizes that a scheduler may choose, by `chosen_batch_sizes`.
    choose_servers: add variants for all numbers of parameter servers that each type may have.
    gpu_types: GPU types in the cluster with the GPUs of the largest node of each; every job type then has a variant for
    each GPU type. Default: one GPU type, on nodes of `gpus_per_node`. Job types that name none of them may use all.

    Each type's rows follow row 0 (no GPUs). `known_remaining` and `known_speed` are set only if every type has them.
    Raises ProfileError if a model is unknown, has no speeds on a GPU type, or a batch size cannot be run.
    """
    if not types:
        raise ProfileError("no job types to compile speed tables for")
    nodes = {ANY_GPU: gpus_per_node} if gpu_types is None else dict(gpu_types)
    if max_gpus < 1 or min(nodes.values(), default=0) < 1:
        raise ProfileError(f"expected at least 1 GPU, got max_gpus {max_gpus} and nodes of {nodes}")
    types = [*dict.fromkeys(one for own in types for one in (own._replace(gpu_types=()), own))]
    variants = _variants(profiles, types, choose_batches, choose_servers)
    parts, none = list[TypeTables](), np.zeros(max_gpus + 1, dtype=np.int64)
    for (gpu, size), variant in product(nodes.items(), variants):
        job_type = variant.job_type
        part, named = profiles.type_tables(job_type, max_gpus, size, gpu), nodes.keys() & job_type.gpu_types
        parts.append(replace(part, floor_size=none) if named and gpu not in named else part)
    on_each, several = len(variants), len(nodes)
    parts = [_shown_elsewhere(parts, i, on_each) for i in range(len(parts))]
    variants *= several
    epochs = max(part.facts.epochs for part in parts)
    offsets = 1 + np.concatenate([[0], np.cumsum([len(part.rates) for part in parts])])
    rates = np.zeros((int(offsets[-1]), epochs))
    for part, start in zip(parts, offsets, strict=False):
        rates[start : start + len(part.rates)] = _held(part.rates, epochs)
    exact_keys, exact_rows = _exact(parts, offsets)
    remaining, speed = _known(parts, epochs)
    return SpeedTables(
        types=tuple(variant.job_type for variant in variants),
        rates=rates,
        elapsed=elapsed_from_rates(rates),
        row=_rows(parts, offsets, max_gpus),
        accuracy=np.stack([_held(part.accuracy, epochs + 1) for part in parts]),
        epochs=np.array([part.facts.epochs for part in parts], dtype=np.int64),
        samples=np.array([part.facts.samples for part in parts]),
        rescale_delay=np.array([part.facts.rescale_delay for part in parts]),
        exact_keys=exact_keys,
        exact_rows=exact_rows,
        known_remaining=remaining,
        known_speed=speed,
        own=np.array([variant.own for variant in variants]),
        batch_size=np.array([variant.chosen_batch for variant in variants]),
        servers=np.array([variant.job_type.servers or parts[variant.own].facts.servers for variant in variants]),
        most_servers=np.array([part.facts.most_servers for part in parts]),
        score_rates=_score_rates(variants, parts, offsets, rates),
        gpu_types=tuple(nodes),
        gpu_type=np.repeat(np.arange(several), on_each),
        node_gpus=np.repeat(np.array(list(nodes.values())), on_each),
        floor_size=_floor_sizes(parts, max_gpus),
    )


def _variants(profiles: ProfileSource, types: Sequence[JobType], batches: bool, servers: bool) -> list[Variant]:
    """Return the variants of job types on one GPU type: the types themselves, then what a scheduler may choose."""
    found = [Variant(job_type._replace(servers=None), own) for own, job_type in enumerate(types)]
    for variant in found[: len(types)]:
        job_type, facts = variant.job_type, profiles.facts(variant.job_type.model)
        sizes = chosen_batch_sizes(profiles, job_type) if batches else []
        numbers = [number for number in range(1, facts.most_servers + 1) if servers and number != facts.servers]
        found += [
            Variant(job_type._replace(batch_size=size or job_type.batch_size, servers=number), variant.own, size)
            for size, number in product((0, *sizes), (None, *numbers))
            if size or number
        ]
    return found


def chosen_batch_sizes(profiles: ProfileSource, job_type: JobType) -> list[int]:
    """Batch sizes [samples] that a scheduler may choose for jobs of a type, in ascending order.

    These are `BatchLimits.choices` that can be split over GPUs, without the type's own batch size. Raises ProfileError
    if the model is unknown.
    """
    limits = profiles.facts(job_type.model).batch
    usable = limits.with_chosen()
    return [size for size in limits.choices() if size != job_type.batch_size and useful_gpus(size, 1, usable)]


def _shown_elsewhere(parts: Sequence[TypeTables], i: int, on_each: int) -> TypeTables:
    """Return part i. If the model does not fit on its GPU type, use the speeds of the first type on which it fits.

    A waiting job counts as on the first GPU type, and policies that ignore types need its speed. on_each: parts a type.
    """
    part = parts[i]
    if part.floor_size is None or part.floor_size.any():
        return part
    others = (other for other in parts[i % on_each :: on_each] if other.floor_size is None or other.floor_size.any())
    return replace(next(others, part), floor_size=part.floor_size)


def _floor_sizes(parts: Sequence[TypeTables], max_gpus: int) -> IntArray:
    """[T, K + 1] `SpeedTables.floor_size`."""
    if all(part.floor_size is None for part in parts):
        return np.zeros((0, 0), dtype=np.int64)
    return np.stack([np.arange(max_gpus + 1) if part.floor_size is None else part.floor_size for part in parts])


def _held(array: FloatArray, length: int) -> FloatArray:
    """Repeat the last entry along the last axis up to `length`."""
    return array[..., np.minimum(np.arange(length), array.shape[-1] - 1)]


def _rows(
    parts: Sequence[TypeTables], offsets: IntArray, max_gpus: int
) -> np.ndarray[tuple[int, int, int], np.dtype[np.int32]]:
    """[T, S, K + 1] rows; a type with fewer spans repeats its last."""
    spans = max(part.row.shape[0] for part in parts)
    row = np.full((len(parts), spans, max_gpus + 1), NO_GPUS, dtype=np.int32)
    for i, part in enumerate(parts):
        held = np.minimum(np.arange(spans), part.row.shape[0] - 1)
        row[i, :, 1:] = part.row[held] + offsets[i]
    return row


def _score_rates(
    variants: Sequence[Variant], parts: Sequence[TypeTables], offsets: IntArray, rates: FloatArray
) -> FloatArray | None:
    """[R, P] `SpeedTables.score_rates`.

    A job with its own fixed batch has no choice to score, so its score is its true rate.
    """
    shown = None
    for i, (variant, part, start) in enumerate(zip(variants, parts, offsets, strict=False)):
        if part.score is None or (variant.job_type.batch_size is not None and variant.own == i):
            continue
        shown = rates.copy() if shown is None else shown
        mine = parts[variant.own]
        assert mine.score is not None, "variants of a type have its metric"
        alone = mine.exact.get((1,), int(mine.row[0, 0]))
        unit = mine.rates[alone] / mine.score[alone]
        shown[start : start + len(part.score)] = _held(part.score * unit, rates.shape[1])
    return shown


def _exact(
    parts: Sequence[TypeTables], offsets: IntArray
) -> tuple[IntArray, np.ndarray[tuple[int], np.dtype[np.int32]]]:
    """Return the sorted keys of exact placements and their rows. Raises ProfileError if there are more than
    MAX_EXACT_TYPES types."""
    pairs = sorted(
        (placement_key(i, placement), int(offsets[i]) + row)
        for i, part in enumerate(parts)
        for placement, row in part.exact.items()
        if len(placement) <= MAX_EXACT_GROUPS
    )
    if pairs and len(parts) > MAX_EXACT_TYPES:
        raise ProfileError(
            f"{len(parts):,} combinations of model, batch size and GPU type, expected at most {MAX_EXACT_TYPES} with "
            "measured placements (fitted profiles have no limit)"
        )
    keys = np.array([key for key, _ in pairs], dtype=np.int64)
    return keys, np.array([row for _, row in pairs], dtype=np.int32)


def _known(parts: Sequence[TypeTables], epochs: int) -> tuple[FloatArray | None, FloatArray | None]:
    """[T, P + 1] known_remaining and [T, K + 1] known_speed, or None for both."""
    remaining = [_held(part.known_remaining, epochs + 1) for part in parts if part.known_remaining is not None]
    speed = [part.known_speed for part in parts if part.known_speed is not None]
    if len(remaining) < len(parts) or len(speed) < len(parts):
        return None, None
    return np.stack(remaining), np.stack(speed)
