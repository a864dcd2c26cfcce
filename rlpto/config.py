"""Experiment files: one typed model of everything an experiment can set, read from YAML."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import yaml
from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import ErrorDetails

from rlpto.agents.settings import BEST, LAST, AgentSettings
from rlpto.cluster import ONE_KIND
from rlpto.envs.settings import EnvSettings
from rlpto.errors import ConfigError
from rlpto.files import file_there, is_there
from rlpto.paths import ConfigPath, TypedOnCommandLine, example_config, example_names, expand_path
from rlpto.policies.spec import FILE_ENDINGS, parse_spec
from rlpto.queues import QueueSettings
from rlpto.ray_cluster.settings import RaySettings
from rlpto.reading import one_line
from rlpto.rewards import RewardWeights
from rlpto.settings import LARGEST_SEED, Settings
from rlpto.simulator.settings import SimulatorSettings
from rlpto.task_volume.settings import ForecastSettings
from rlpto.workloads.listed import ListedJob
from rlpto.workloads.mapping import MappingSettings
from rlpto.workloads.windows import WindowSettings
from rlpto.yamlfile import Location, YamlFile, dotted_key, parse_value, read_yaml

_LONGEST_POSITION = 10
"""Digits of a position in a list."""

_SPECS = ("policies", "reference")
"""Keys that hold specs of policies."""


def _expand_name_or_path(value: object, info: ValidationInfo) -> object:
    """Leave plain names alone; treat what has a folder or an ending as a path."""
    if isinstance(value, str) and ("/" in value or value.endswith((".yaml", ".yml"))):
        return str(expand_path(value, info))
    return value


def _expand_spec(value: object, info: ValidationInfo) -> object:
    """Make the files among a policy's options paths as `expand_path` does."""
    if not isinstance(value, str):
        return value
    kind = TypedOnCommandLine if isinstance(value, TypedOnCommandLine) else str
    try:
        return str(parse_spec(value).with_paths(lambda path: str(expand_path(kind(path), info))))
    except ConfigError as wrong:  # pydantic adds where the spec stands only to a ValueError
        raise ValueError(str(wrong)) from None


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str | Path) else value


NameOrPath = Annotated[str, BeforeValidator(_expand_name_or_path)]
PolicySpec = Annotated[str, BeforeValidator(_expand_spec)]


class NodeGroup(Settings):
    """Nodes that are alike."""

    count: int = Field(1, ge=1, le=100_000)
    """How many nodes there are of this kind."""
    gpus: int = Field(4, ge=1, le=1024)
    """GPUs of each."""
    cpus: int = Field(0, ge=0, le=10_000)
    """CPU slots of each; only parameter servers use them."""
    gpu: str = Field(ONE_KIND, min_length=1)
    """Their kind of GPU."""


class ClusterSettings(Settings):
    """The machines."""

    nodes: tuple[NodeGroup, ...] = Field((NodeGroup(count=16, gpus=4),), min_length=1)
    """Groups of nodes that are alike."""


class WorkloadSettings(Settings):
    """Where jobs come from, how they are cut into windows, and what they train."""

    source: Literal["synthetic", "trace", "files", "jobs", "follow"] = "synthetic"
    """synthetic: drawn from a calibration; trace: one file, cut into windows; files: every file is one window, or
    gives several (`draws`); jobs: those listed below, in one window called jobs; follow: a file of JSON lines, each a
    job as listed below, which may be appended to while it is evaluated, until a line {"closed": true}."""
    jobs: tuple[ListedJob, ...] = ()
    """jobs: each with model and submit time, and whatever else is to be other than usual."""
    calibration: NameOrPath = "philly"
    """synthetic: a built-in calibration by name, or the path of a YAML made by `rlpto trace calibrate`."""
    days: float = Field(14.0, gt=0, le=3650)
    """synthetic: days to generate, before they are cut into windows."""
    path: Annotated[tuple[ConfigPath, ...], BeforeValidator(_one_or_more)] = ()
    """trace, files: file or list of files, `*` allowed; relative to this file, `${NAME:-default}` is filled in.
    files: these are the test windows."""
    train_path: Annotated[tuple[ConfigPath, ...], BeforeValidator(_one_or_more)] = ()
    """files: further files, whose windows are for training; none of them may be a test file."""
    validation_path: Annotated[tuple[ConfigPath, ...], BeforeValidator(_one_or_more)] = ()
    """files: further files, whose windows are for validation; with `draws` the files for training may serve again,
    for other draws."""
    draws: int = Field(0, ge=0, le=100_000)
    """files: windows to draw from every file, each `windows.hours` long and with jobs drawn from the file with
    replacement, as many as `load` asks for (null: as the file has); 0: every file is one window, as it is."""
    format: str | None = None
    """trace, files: format of the files, one of `rlpto trace import --help`; null: tell it from the file."""
    skip_days: float = Field(0.0, ge=0, le=36_500)
    """trace: days to leave out at its beginning, such as those in which a cluster was being filled."""
    windows: WindowSettings = WindowSettings()
    """How a trace is cut into disjoint windows for training, validation and testing."""
    mapping: MappingSettings = MappingSettings()
    """How a recorded job is given a model and its work."""
    load: float | None = Field(None, gt=0, le=100)
    """Scale arrivals until requested GPU-time is this fraction of the cluster's capacity; null: leave them.
    files: needs `draws`."""

    @model_validator(mode="after")
    def _needs_path(self) -> WorkloadSettings:
        if self.source in ("trace", "files", "follow") and not self.path:
            raise ValueError(f"source {self.source} needs a path")
        if self.source == "follow" and len(self.path) != 1:
            raise ValueError(f"path: source follow expects one file, got {len(self.path)}")
        if (self.source == "jobs") != bool(self.jobs):
            raise ValueError(f"source {self.source}: jobs are listed with source jobs, and only then")
        if self.source in ("jobs", "follow") and self.load is not None:
            raise ValueError("load: listed jobs are taken as they are, expected null")
        if self.source == "files" and self.load is not None and not self.draws:
            raise ValueError("load: files are taken as they are, expected null, or draws of 1 or more")
        if self.source != "files" and (self.draws or self.train_path or self.validation_path):
            raise ValueError(f"source {self.source}: draws, train_path and validation_path are for source files")
        return self


class ProfileSettings(Settings):
    """How fast models train."""

    folder: ConfigPath | None = None
    """Folder of profiles: fitted ones (*.yaml) or measurements (a folder for each model); or a file of fitted ones, as
    `rlpto profile` writes it; null: built in."""


class KnowledgeSettings(Settings):
    """What policies are told about jobs."""

    mode: Literal["exact", "noisy", "online"] = "exact"
    """exact: the true profile (an oracle); noisy: the profile with the errors below, drawn once for each job; online:
    what each job's own reports tell so far (on a real cluster only: simulated jobs report nothing)."""
    remaining_sigma: float = Field(0.3, ge=0, le=10)
    """noisy: standard deviation of the logarithm of the error of the remaining work."""
    speed_sigma: float = Field(0.2, ge=0, le=10)
    """noisy: standard deviation of the logarithm of the error of the speed."""
    scaling_sigma: float = Field(0.1, ge=0, le=10)
    """noisy: standard deviation of the exponent e in the error k**e of the speed with k GPUs."""


class EvaluationSettings(Settings):
    """Which windows and seeds policies are compared on."""

    split: Literal["train", "validation", "test"] = "test"
    """Windows to evaluate on."""
    seeds: int = Field(1, ge=1, le=10_000)
    """Repetitions of every window: with other models and work of the jobs, and other failures."""
    reference: PolicySpec = "fifo"
    """Policy that the others are compared with, pair by pair."""


class Config(Settings):
    """One experiment."""

    name: str = Field("experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the experiment, and of its folder under runs/."""
    description: str = ""
    """What the experiment is for."""
    seed: int = Field(0, ge=0, le=LARGEST_SEED)
    """Seed of all randomness."""
    cluster: ClusterSettings = ClusterSettings()
    """The machines."""
    workload: WorkloadSettings = WorkloadSettings()
    """Where jobs come from."""
    profiles: ProfileSettings = ProfileSettings()
    """How fast models train."""
    knowledge: KnowledgeSettings = KnowledgeSettings()
    """What policies are told about jobs."""
    forecast: ForecastSettings = ForecastSettings()
    """What is known of the jobs that will arrive."""
    queue: QueueSettings = QueueSettings()
    """Order in which jobs are served."""
    reward: RewardWeights = RewardWeights()
    """Weights of the reward's parts."""
    env: EnvSettings = EnvSettings()
    """What an agent sees, does and learns from."""
    agent: AgentSettings = AgentSettings()
    """How the agent is trained."""
    simulator: SimulatorSettings = SimulatorSettings()
    """How time passes, when decisions are due, and what a rescale costs."""
    ray: RaySettings = RaySettings()
    """Real jobs on a Ray cluster."""
    policies: tuple[PolicySpec, ...] = Field(("fifo", "srtf", "las"), min_length=1)
    """Policies to evaluate: `name` or `name:option=value,...`, as `rlpto policies` lists them."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """Which windows and seeds policies are compared on."""


def spec_files(spec: str) -> list[Path]:
    """The files among the options of a policy's spec; of a run, the checkpoint it is used from."""
    found = []
    for path in parse_spec(spec).paths:
        found += [path] if path.suffix in FILE_ENDINGS else _checkpoints(path)
    return found


def _checkpoints(run: Path) -> list[Path]:
    """The file that `agent:run=...` uses: its best checkpoint, else its last."""
    return [path for name in (BEST, LAST) if file_there(path := run / name)][:1]


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read an experiment file and apply `key=value` overrides to it.

    path: a file, or the name of an example, such as quickstart. Raises ConfigError, in one line, for everything that
    is wrong with either.
    """
    file = read_yaml(_config_file(Path(path)))
    data: object = file.data
    changed: list[Location] = []
    for override in overrides:
        location, value = _parse_override(override)
        data = _with_value(data, location, value, override)
        changed.append(location)
    try:
        return Config.model_validate(data, context={"folder": file.path.parent})
    except ValidationError as error:
        raise ConfigError(_explain(error, file, changed)) from None


def _config_file(path: Path) -> Path:
    """The path itself if it is there, else the example of that name. Raises ConfigError if there is neither."""
    found = None if is_there(path) else example_config(path)
    if found is None and not is_there(path) and not path.suffix:
        raise ConfigError(f"{path}: no such file, and no example of that name: expected {', '.join(example_names())}")
    return found or path


def _parse_override(override: str) -> tuple[Location, object]:
    """Where an override `a.b.0=value` points, and its value, parsed as YAML."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"--set {override}: expected key=value, such as simulator.interval=30")
    value = _mark_typed(parse_value(text, f"--set {one_line(override)}"))
    return tuple(int(part) if part.isdecimal() and len(part) < _LONGEST_POSITION else part for part in parts), value


def _mark_typed(value: object) -> object:
    if isinstance(value, str):
        return TypedOnCommandLine(value)
    if isinstance(value, list):
        return [_mark_typed(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _mark_typed(entry) for key, entry in value.items()}
    return value


def _with_value(tree: object, location: Location, value: object, override: str) -> object:
    """A copy of `tree` in which `location` holds `value`."""
    if not location:
        return value
    at, *rest = location
    if isinstance(at, int):
        if not isinstance(tree, list):
            raise ConfigError(
                f"--set {override}: the file has no list there that has a number {at}; set the whole list"
            )
        if at >= len(tree):
            raise ConfigError(f"--set {override}: the list there has {len(tree)} entries, counted from 0; got {at}")
        return [_with_value(entry, tuple(rest), value, override) if i == at else entry for i, entry in enumerate(tree)]
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        kind = "a list" if isinstance(tree, list) else "a single value"
        raise ConfigError(f"--set {override}: there is {kind} in the file where {at} was to be set")
    return {**tree, at: _with_value(tree.get(at), tuple(rest), value, override)}


def _explain(error: ValidationError, file: YamlFile, changed: Sequence[Location]) -> str:
    """One line about the first thing that is wrong; unknown keys come first, since they cause the rest."""
    details = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    detail = details[0]
    location: Location = detail["loc"]
    typed = any(location[: len(start)] == start for start in changed)
    place = "--set" if typed else file.place(location)
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return f"{place}: {dotted_key(location) or 'the file'}: {_reason(detail)}{more}"


def _reason(detail: ErrorDetails) -> str:
    """What is wrong with one value, and what was expected there."""
    context = detail.get("ctx", {})
    match detail["type"]:
        case "extra_forbidden":
            return f"unknown key{_suggestion(detail['loc'])}"
        case "value_error":
            return detail["msg"].removeprefix("Value error, ")
        case "missing":
            expected = "one more entry" if isinstance(detail["loc"][-1], int) else "a value"
            return f"missing, expected {expected}"
        case "invalid_key":
            return "expected a word as key"
        case "too_short":
            expected = f"at least {context['min_length']} entry"
        case "too_long":
            expected = f"at most {context['max_length']} entries"
        case "string_pattern_mismatch":
            expected = f"text that matches {context['pattern']}"
        case "literal_error":
            expected = context["expected"]
        case "tuple_type":
            expected = "a list"
        case "model_type" | "model_attributes_type":
            expected = "keys and values"
        case _:
            expected = detail["msg"].removeprefix("Input should be ").split(", ")[0]
    got = "null" if detail["input"] is None else repr(detail["input"])
    return f"expected {expected}, got {one_line(got, 60)}"


def _suggestion(location: Location) -> str:
    """What an unknown key was probably meant to be: a neighbour's name, or the same name elsewhere."""
    *around, wrong = location
    valid = {dotted_key(key): key for key in _all_keys(Config)}
    inside = _without_positions(around)
    neighbours = {str(key[-1]): name for name, key in valid.items() if key[:-1] == inside}
    near = difflib.get_close_matches(str(wrong), neighbours, n=1)
    if near:
        return f", did you mean {dotted_key((*around, near[0]))}?"
    elsewhere = [name for name, key in valid.items() if key[-1] == wrong]
    if elsewhere:
        return f", did you mean {elsewhere[0]}?"
    nearest = difflib.get_close_matches(str(wrong), neighbours, n=1, cutoff=0.0)
    return f", the nearest valid key is {dotted_key((*around, nearest[0]))}" if nearest else ""


def _without_positions(location: Sequence[str | int]) -> Location:
    return tuple(part for part in location if isinstance(part, str))


def _all_keys(model: type[Settings], around: Location = ()) -> Iterator[Location]:
    """Every key of a settings model; list positions are left out."""
    for name, field in model.model_fields.items():
        yield (*around, name)
        for inner in _models_in(field.annotation):
            yield from _all_keys(inner, (*around, name))


def _models_in(annotation: Any) -> Iterator[type[Settings]]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def resolved_yaml(config: Config) -> str:
    """The whole configuration as YAML: every key with its value, and its description as a comment.

    Reading it back gives the same configuration.
    """
    return "\n".join(_described(config)) + "\n"


def _described(settings: Settings) -> Iterator[str]:
    """Lines of YAML for one settings object, not indented."""
    for name, field in type(settings).model_fields.items():
        for line in (field.description or "").splitlines():
            yield f"# {line.strip()}"
        value = getattr(settings, name)
        if name in _SPECS:
            value = tuple(map(_anywhere, value)) if isinstance(value, tuple) else _anywhere(value)
        if isinstance(value, Settings):
            yield f"{name}:"
            yield from (f"  {line}" for line in _described(value))
        elif isinstance(value, tuple) and any(isinstance(entry, Settings) for entry in value):
            yield f"{name}:"
            for position, entry in enumerate(value):
                lines = [line for line in _described(entry) if position == 0 or not line.lstrip().startswith("#")]
                first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
                yield from (f"  {line}" for line in lines[:first])
                yield f"  - {lines[first]}"
                yield from (f"    {line}" for line in lines[first + 1 :])
        else:
            yield f"{name}: {_inline(value)}"


def _anywhere(spec: str) -> str:
    """A policy's spec with absolute paths, as other paths are written: it means the same wherever it is read."""
    return str(parse_spec(spec).with_paths(lambda path: str(Path(path).absolute())))


def _inline(value: object) -> str:
    """A plain value or a list of them on one line of YAML."""
    escaped = isinstance(value, str) and not value.isprintable()
    text = yaml.safe_dump(
        _plain(value),
        default_flow_style=True,
        default_style='"' if escaped else None,
        width=10**6,
        allow_unicode=not escaped,
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value.absolute())
    if isinstance(value, Settings):
        return _plain(value.model_dump())
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, str) else value
