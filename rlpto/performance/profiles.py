"""Profiles of models: fitted parameters, their YAML form, and the interface of every source of profiles."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import yaml
from pydantic import ConfigDict, Field, GetCoreSchemaHandler, GetPydanticSchema, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, core_schema

from rlpto.io.arrays import FloatArray, IntArray
from rlpto.io.errors import ProfileError
from rlpto.io.files import folder_there
from rlpto.io.reading import parsing
from rlpto.io.settings import LowerCase
from rlpto.io.settings_text import first_problem
from rlpto.io.yaml_file import Location, YamlFile, read_yaml_documents
from rlpto.performance.accuracy import AccuracyCurve
from rlpto.performance.efficiency import LARGEST_BATCH, BatchLimits, BatchPerformance, NoiseCurve, useful_gpus
from rlpto.performance.parameter_server import ServerParams
from rlpto.performance.size_table import SizeTable
from rlpto.performance.tables import ANY_GPU, JobType
from rlpto.performance.throughput import ThroughputLaw, ThroughputParams

DEFAULT_RESCALE_DELAY = 30.0
"""Rescale delay in seconds of a model without a known delay."""
LLM = "llm"
"""Name of the profiles of large models that come with RLPTO (docs/performance.md)."""
_SHIPPED = Path(__file__).parent / "profiles"
LAWS: Mapping[str, type[ThroughputLaw]] = {
    "pollux": ThroughputParams,
    "parameter_server": ServerParams,
    "table": SizeTable,
}
"""Throughput laws by name, the key `law` under `throughput` in a profile. The first is the default.

To add a law, write a frozen dataclass of its parameters that satisfies `ThroughputLaw`, in its own module."""


def _law_name(given: Any) -> str | None:
    """Return the name of the law in a profile's `throughput`; None if it is not a valid name."""
    usual = next(iter(LAWS))
    name = given.get("law", usual) if isinstance(given, dict) else getattr(given, "law", usual)
    return name if isinstance(name, str) else None


def _law_schema(_: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    return core_schema.tagged_union_schema(
        {name: handler(law) for name, law in LAWS.items()},
        discriminator=_law_name,
        custom_error_type="throughput_law",
        custom_error_message=f"Expected law to be one of {', '.join(LAWS)}",
    )


AnyLaw = Annotated[ThroughputLaw, GetPydanticSchema(_law_schema)]
"""Any law in `LAWS`, as a field that pydantic reads."""


@dataclass(frozen=True)
class FitErrors:
    """Errors of a profile against the measurements it was fitted to.

    throughput_median, throughput_p90: relative error of the step time over all measured sizes; for a table of sizes,
    over held-out sizes (`SizeTable.held_out_errors`). Default: unknown.
    accuracy_rmse: root mean square error of the accuracy over all epochs and validation runs.
    noise_log_rmse: the same error of the natural logarithm of the noise scale.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    throughput_median: Annotated[float, Field(ge=0)] | None = None
    throughput_p90: Annotated[float, Field(ge=0)] | None = None
    accuracy_rmse: Annotated[float, Field(ge=0)] | None = None
    noise_log_rmse: Annotated[float, Field(ge=0)] | None = None


@dataclass(frozen=True)
class GpuTypeSpeed:
    """Training speed of a model on one GPU type.

    throughput: throughput law on this GPU type. max_local: most samples that one such GPU computes at once. Default:
    the limit in `Profile.batch`.
    throughput_median, throughput_p90: errors of the fit, as in `FitErrors`. Default: unknown.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    throughput: AnyLaw
    max_local: Annotated[int, Field(ge=1, le=LARGEST_BATCH)] | None = None
    throughput_median: Annotated[float, Field(ge=0)] | None = None
    throughput_p90: Annotated[float, Field(ge=0)] | None = None


@dataclass(frozen=True)
class Profile:
    """A model to train, as fitted parameters.

    name: name that jobs refer to. description, source: the model and its measurements, in words.
    samples: samples in one epoch. epochs: a whole training, in scale-invariant epochs.
    batch: limits of the batch size. noise: gradient noise scale by epoch.
    rescale_delay: seconds without progress after a change of a job's GPUs. errors: errors of the fit.
    gpu_types: speeds by GPU type; `throughput` then applies to GPUs of unnamed type (ANY_GPU), and a file may omit it
    if it equals the first type's. Default: `throughput` applies to every GPU type. A model whose speeds are all tables
    of sizes does not fit on GPU types without one.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    name: Annotated[str, Field(min_length=1)]
    description: str
    source: str
    samples: Annotated[float, Field(gt=0, le=1e12)]
    epochs: Annotated[int, Field(ge=1, le=10_000)]
    batch: BatchLimits
    throughput: AnyLaw
    noise: NoiseCurve
    accuracy: AccuracyCurve
    rescale_delay: Annotated[float, Field(ge=0, le=1e6)]
    errors: FitErrors
    gpu_types: dict[LowerCase, GpuTypeSpeed] = field(default_factory=dict)

    def __post_init__(self) -> None:
        batch = self.batch
        if batch.base > batch.largest:
            raise ValueError(f"batch: base {batch.base} exceeds largest {batch.largest}")
        if not batch.min_local <= min(batch.max_local, batch.base):
            raise ValueError(f"batch: min_local {batch.min_local} exceeds max_local or base")
        for gpu, speed in self.gpu_types.items():
            if speed.max_local is not None and speed.max_local < batch.min_local:
                raise ValueError(f"gpu_types: {gpu}: max_local {speed.max_local} is below min_local {batch.min_local}")

    def on(self, gpu: str) -> Profile:
        """Return the profile on one GPU type. Raises ProfileError if its speeds by type lack this one, unless they are
        all tables of sizes, in which case the model does not fit there."""
        if not self.gpu_types or gpu == ANY_GPU or not self.fits(gpu):
            return self
        if gpu not in self.gpu_types:
            raise unknown_gpu_type(self.name, gpu, self.gpu_types)
        speed = self.gpu_types[gpu]
        batch = self.batch if speed.max_local is None else replace(self.batch, max_local=speed.max_local)
        return replace(self, throughput=speed.throughput, batch=batch, gpu_types={})

    def fits(self, gpu: str) -> bool:
        """Whether the model can run on a GPU type."""
        if not self.gpu_types or gpu == ANY_GPU or gpu in self.gpu_types:
            return True
        return not all(isinstance(speed.throughput, SizeTable) for speed in self.gpu_types.values())

    def tables(self) -> dict[str, SizeTable]:
        """Return the tables of sizes by GPU type, under ANY_GPU if types are unnamed; empty for other laws."""
        laws = {gpu: speed.throughput for gpu, speed in self.gpu_types.items()} or {ANY_GPU: self.throughput}
        return {gpu: law for gpu, law in laws.items() if isinstance(law, SizeTable)}


class ModelLimits(NamedTuple):
    """Size and limits of a model, with the fields of `Profile`.

    servers, most_servers: default and largest number of parameter servers of a job; 0 for models without servers.
    """

    samples: float
    epochs: int
    batch: BatchLimits
    rescale_delay: float
    servers: int = 0
    most_servers: int = 0


@dataclass(frozen=True)
class TypeTables:
    """Speed tables of one job type, the input of `tables.SpeedTables`. R rows, P epochs, S spans, K GPUs.

    rates: [R, P] epochs per second, none of them 0. row: [S, K] row for k + 1 GPUs on s + 1 nodes.
    exact: row of each placement (GPUs per node, smallest rotation) with its own measurements.
    accuracy: [P + 1]. known_remaining, known_speed: [P + 1] and [K + 1], or None.
    score: [R, P] score that jobs maximise when choosing the batch size, in any unit shared by all types of a model and
    metric. Default: the rates.
    floor_size: [K + 1] largest allowed size up to each number of GPUs, or 0. Default: every size is allowed.
    """

    facts: ModelLimits
    rates: FloatArray
    row: np.ndarray[tuple[int, int], np.dtype[np.int32]]
    exact: dict[tuple[int, ...], int]
    accuracy: FloatArray
    known_remaining: FloatArray | None = None
    known_speed: FloatArray | None = None
    score: FloatArray | None = None
    floor_size: IntArray | None = None


class ProfileSource(Protocol):
    """Models' performance: fitted profiles, or interpolated measurements. All methods raise ProfileError for an unknown
    model, and for a GPU type without speeds."""

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the known models, sorted."""
        ...

    def facts(self, model: str) -> ModelLimits:
        """Return the size and limits of a model."""
        ...

    def type_tables(self, job_type: JobType, max_gpus: int, gpus_per_node: int, gpu: str = ANY_GPU) -> TypeTables:
        """Compile one job type for 1 to max_gpus GPUs of type `gpu`. Raises ProfileError if it cannot run there."""
        ...


class BatchPerformanceSource(ProfileSource, Protocol):
    """Profiles that know the speed of every batch size that a job may choose."""

    def batch_performance(self, job_type: JobType, placement: tuple[int, ...], gpu: str = ANY_GPU) -> BatchPerformance:
        """Performance of a job type's batches on GPUs of type `gpu`, placed like `placement` (GPUs per node)."""
        ...

    def limits(self, model: str, gpu: str = ANY_GPU) -> BatchLimits:
        """Limits of a model's batch size on a GPU type."""
        ...

    def one_gpu_throughput(self, model: str, gpu: str) -> float:
        """Samples/s of one GPU of a type at its largest local batch."""
        ...

    def epoch_samples(self, model: str) -> FloatArray:
        """[P] samples at the base batch equivalent to each epoch's progress."""
        ...


def unknown_model(model: str, known: tuple[str, ...]) -> ProfileError:
    """Return the error for a model that a source does not know."""
    return ProfileError(f"no profile of model {model!r}; known: {', '.join(known) or 'none'}")


def unknown_gpu_type(model: str, gpu: str, known: Iterable[str]) -> ProfileError:
    """Return the error for a GPU type of the cluster that a profile with speeds by GPU type lacks."""
    return ProfileError(
        f"the profile of model {model!r} has no speeds on GPUs of type {gpu!r}, which the cluster has "
        f"(cluster.nodes: gpu); expected one of {', '.join(sorted(known))}"
    )


def most_gpus(job_type: JobType, batch: BatchLimits, max_gpus: int) -> int:
    """Largest number of GPUs, up to `max_gpus`, over which a type's batch can be spread. Raises ProfileError unless its
    fixed batch size lies between its model's base and largest, and fits one GPU."""
    size = job_type.batch_size
    if size is not None and not batch.base <= size <= batch.largest:
        raise ProfileError(f"{job_type.model}: batch_size {size}, expected {batch.base} to {batch.largest} samples")
    most = useful_gpus(size, max_gpus, batch)
    if most == 0:
        total = batch.largest if size is None else size
        raise ProfileError(f"{job_type.model}: batch_size {total} cannot be split within its local batch limits")
    return most


@cache
def builtin_profiles() -> Mapping[str, Profile]:
    """The profiles that come with RLPTO, by name."""
    return MappingProxyType(load_folder(_SHIPPED))


def shipped_folder(path: Path) -> Path:
    """Return the path itself, or for a missing path named `llm` the folder of large models that come with RLPTO."""
    return path if path.name != LLM or path.exists() else _SHIPPED / LLM


@cache
def large_profiles() -> Mapping[str, Profile]:
    """The profiles of large models that come with RLPTO, by name."""
    return MappingProxyType(load_folder(shipped_folder(Path(LLM))))


def builtin_rescale_delay(model: str) -> float:
    """Rescale delay in seconds of the built-in model of that name; DEFAULT_RESCALE_DELAY if there is none."""
    profile = builtin_profiles().get(model)
    return DEFAULT_RESCALE_DELAY if profile is None else profile.rescale_delay


def load_folder(folder: Path) -> dict[str, Profile]:
    """All profiles in the `*.yaml` files of a folder, by name. Raises ProfileError if one is broken or two share a
    name."""
    profiles: dict[str, Profile] = {}
    for path in sorted(folder.glob("*.yaml")) if folder_there(folder) else ():
        for name, profile in load_file(path).items():
            if name in profiles:
                raise ProfileError(f"{path}: name {name!r} is taken by another file of {folder}")
            profiles[name] = profile
    return profiles


def load_file(path: Path) -> dict[str, Profile]:
    """Load all profiles of a file, by name: one, or several YAML documents. Raises ProfileError naming the file, the
    key and the fault."""
    profiles = [_profile(file) for file in read_yaml_documents(path, "a profile in YAML", ProfileError)]
    names = [profile.name for profile in profiles]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ProfileError(f"{path}: two profiles are called {twice!r}, expected a name of its own for each")
    return dict(zip(names, profiles, strict=True))


def _profile(file: YamlFile) -> Profile:
    speeds = file.data.get("gpu_types") if isinstance(file.data, dict) else None
    try:
        if speeds and "throughput" not in file.data:
            first = next(iter(speeds.values())) if isinstance(speeds, dict) else None
            file.data["throughput"] = first.get("throughput") if isinstance(first, dict) else None
        names = [str(gpu) for gpu in speeds] if isinstance(speeds, dict) else []
        lower = [name.lower() for name in names]
        for at, name in enumerate(names):
            if name.lower() in lower[:at]:
                place = file.place(("gpu_types", name))
                raise ProfileError(f"{place}: gpu_types.{name}: there in another case, expected different names")
        # Through JSON, where strict validation accepts a list for a tuple but only numbers for numbers.
        with parsing(file.path, "a profile", ProfileError):
            content = json.dumps(file.data, default=str)
        return _ADAPTER.validate_json(content)
    except ValidationError as error:
        location, said = first_problem(error, None, located=_located)
        raise ProfileError(f"{file.place(location)}: {said}") from None


def profile_yaml(profile: Profile) -> str:
    """Write a profile as YAML that `load_file` reads."""
    given = asdict(profile, dict_factory=lambda pairs: {key: value for key, value in pairs if value is not None})
    if not profile.gpu_types:
        del given["gpu_types"]
    return yaml.dump(given, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def profiles_yaml(profiles: Iterable[Profile]) -> str:
    """Write profiles as a YAML file of one document each, which `load_file` reads."""
    return "---\n".join(profile_yaml(profile) for profile in profiles)


_ADAPTER = TypeAdapter(Profile)


def _located(location: Location) -> Location:
    """Location of a problem, without the name of the law that pydantic inserts below `throughput`."""
    if "throughput" in location:
        at = location.index("throughput") + 1
        return location[:at] + location[at + 1 :]
    return location


class _Dumper(yaml.SafeDumper):
    """Writes tuples on one line and mappings one key a line."""


_Dumper.add_representer(tuple, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, True))
