"""Experiment files: one typed model of all settings of an experiment, read from YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, model_validator

from rlpto.agents.settings import AgentSettings
from rlpto.arrivals.settings import ForecastSettings
from rlpto.core.cluster import BackgroundLoad, ClusterShape, Node, SpotSettings
from rlpto.core.queues import QueueSettings
from rlpto.core.renting import RentedSettings
from rlpto.core.rewards import RewardWeights
from rlpto.envs.settings import EnvSettings
from rlpto.io.errors import ConfigError, nearest
from rlpto.io.files import file_there, is_there
from rlpto.io.paths import ConfigPath, TypedOnCommandLine, example_config, example_names, expand_path, portable
from rlpto.io.reading import one_line
from rlpto.io.settings import LARGEST_SEED, LowerCase, Settings
from rlpto.io.settings_text import described_yaml, first_problem, inline_yaml
from rlpto.io.yaml_file import Location, YamlFile, parse_value, read_yaml
from rlpto.knowledge.known import NOISE_SLOPE, UNSEEN_HOURS, EstimateRules, FitMethod
from rlpto.knowledge.remaining import RemainingKnowledge
from rlpto.performance.metrics import DEFAULT_METRIC, MetricName
from rlpto.performance.tables import ANY_GPU
from rlpto.policies.spec import CODE_ENDING, parse_provisioner, parse_spec
from rlpto.ray_cluster.settings import RaySettings
from rlpto.simulator.settings import SimulatorSettings
from rlpto.workloads.listed import JobClass, ListedJob
from rlpto.workloads.mapping_settings import MappingSettings
from rlpto.workloads.windows import WindowSettings

_LONGEST_POSITION = 10
"""A number in a key with this many digits or more is not a position in a list."""


def _expand_name_or_path(value: object, info: ValidationInfo) -> object:
    """Return a plain name unchanged; make a value with a folder or a YAML ending an absolute path."""
    if isinstance(value, str) and ("/" in value or value.endswith((".yaml", ".yml"))):
        return str(Path(str(expand_path(value, info))).absolute())
    return value


def _expand_spec(value: object, info: ValidationInfo) -> object:
    """Expand the paths in a policy's spec with `expand_path`; the path of a Python file also becomes absolute."""
    if not isinstance(value, str):
        return value
    kind = TypedOnCommandLine if isinstance(value, TypedOnCommandLine) else str

    def expanded(path: str) -> str:
        found = Path(str(expand_path(kind(path), info)))
        return str(found.resolve() if found.suffix == CODE_ENDING else found)

    try:
        return str(parse_spec(value).with_paths(expanded))
    except ConfigError as wrong:  # pydantic adds the spec's location only to a ValueError
        raise ValueError(str(wrong)) from None


def _expand_provisioner(value: object, info: ValidationInfo) -> object:
    """Expand the paths in a provisioner's spec with `expand_path`."""
    if not isinstance(value, str):
        return value
    try:
        return _expand_spec(value, info) if parse_provisioner(value) else value
    except ConfigError as wrong:
        raise ValueError(str(wrong)) from None


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str | Path) else value


NameOrPath = Annotated[str, BeforeValidator(_expand_name_or_path)]
PolicySpec = Annotated[str, BeforeValidator(_expand_spec)]
ProvisionerSpec = Annotated[str, BeforeValidator(_expand_provisioner)]


class NodeGroup(Settings):
    """A group of identical nodes."""

    count: int = Field(1, ge=0, le=100_000)
    """Number of permanent nodes. With `rented` it may be 0, which is then the default."""
    gpus: int = Field(4, ge=1, le=1024)
    """GPUs per node."""
    cpus: int = Field(0, ge=0, le=10_000)
    """CPU slots per node; only parameter servers use them."""
    gpu: LowerCase = Field(ANY_GPU, min_length=1)
    """GPU type, in lower case."""
    price: float = Field(0.0, ge=0, le=10**9)
    """Price per GPU-hour, in any currency, charged while a job holds the GPU; on rented nodes, charged for every GPU
    from request to return. Policies see the price."""
    spot: SpotSettings | None = None
    """How often the nodes are taken away, in simulation. Default: never."""
    rented: RentedSettings | None = None
    """Additional nodes of this group, requested and returned by the provisioner (`provision`). Default: none."""

    @model_validator(mode="before")
    @classmethod
    def _rented_alone(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("rented") is not None and "count" not in given:
            return {**given, "count": 0}
        return given

    @model_validator(mode="after")
    def _is_there(self) -> NodeGroup:
        if self.count == 0 and self.rented is None:
            raise ValueError("count: 0 nodes, and none rented: expected 1 or more")
        return self

    @property
    def machines(self) -> list[Node]:
        """The nodes of the group; the rentable nodes come last, and only `least` of them are up."""
        own = Node(self.gpus, self.cpus, self.gpu, price=self.price, spot=self.spot)
        if (rented := self.rented) is None:
            return [own] * self.count
        node = replace(own, rented=rented)
        return [own] * self.count + [replace(node, up=number < rented.least) for number in range(rented.most)]


class ClusterSettings(Settings):
    """The cluster's nodes."""

    nodes: tuple[NodeGroup, ...] = Field((NodeGroup(count=16, gpus=4),), min_length=1)
    """Groups of identical nodes."""

    @property
    def shape(self) -> ClusterShape:
        """All nodes one by one; rentable nodes above their group's `least` are down."""
        return ClusterShape(node for group in self.nodes for node in group.machines)


class WorkloadSettings(Settings):
    """The source of the jobs, their division into windows, and the models that they train."""

    source: Literal["synthetic", "trace", "files", "jobs", "frozen"] = "synthetic"
    """synthetic: drawn from a calibration; trace: one file, cut into windows; files: every file is one window, or
    gives several (`draws`); jobs: the jobs listed below, in one window called jobs; frozen: one file with the drawn
    jobs of test windows, written by `rlpto bench build`."""
    jobs: tuple[ListedJob, ...] = ()
    """jobs: each with model and submit time, and any settings that differ from the defaults."""
    calibration: NameOrPath = "philly"
    """synthetic: a built-in calibration by name, or the path of a YAML made by `rlpto trace calibrate`."""
    days: float = Field(14.0, gt=0, le=3650)
    """synthetic: days to generate, before they are cut into windows."""
    path: Annotated[tuple[ConfigPath, ...], BeforeValidator(_one_or_more)] = ()
    """trace, files, frozen: file or list of files, `*` allowed; relative to this file, `${NAME:-default}` is filled in.
    Or a trace that comes with RLPTO, such as microsoft/cluster04. files: these are the test windows."""
    train_path: Annotated[tuple[ConfigPath, ...], BeforeValidator(_one_or_more)] = ()
    """files: files whose windows are for training; none of them may be a test file."""
    validation_path: Annotated[tuple[ConfigPath, ...], BeforeValidator(_one_or_more)] = ()
    """files: files whose windows are for validation. With `draws` they may be training files too; other windows are
    then drawn from them."""
    draws: int = Field(0, ge=0, le=100_000)
    """files: number of windows to draw from each file, each `windows.hours` long, with jobs drawn from the file with
    replacement until they reach `load`, or as many as the file has if `load` is null. At 0 each file is one window,
    unchanged."""
    format: str | None = None
    """trace, files: format of the files (listed by `rlpto trace import --help`). Default: detected from the file."""
    skip_days: float = Field(0.0, ge=0, le=36_500)
    """trace: days to leave out at its beginning, for example while the cluster was being filled."""
    windows: WindowSettings = WindowSettings()
    """How a trace is cut into disjoint windows for training, validation and testing."""
    mixture: tuple[JobClass, ...] = ()
    """synthetic, trace: classes of jobs that replace the drawn or recorded jobs at their submit times; needs
    mapping.mode named."""
    mapping: MappingSettings = MappingSettings()
    """How a recorded job gets a model and its work."""
    background: tuple[BackgroundLoad, ...] = ()
    """Other processes that hold GPUs and CPU slots from the start until they end; jobs may use them afterwards."""
    metric: MetricName = DEFAULT_METRIC
    """Metric by which jobs without a batch size choose one, and in which policies see speeds: goodput (samples/s times
    statistical efficiency), throughput (samples/s), efficiency (goodput, but with fewer and better used GPUs)."""
    load: float | None = Field(None, gt=0, le=100)
    """Scale arrivals until requested GPU-time is this fraction of the cluster's capacity. files: needs `draws`.
    Default: arrivals are not scaled."""

    @model_validator(mode="after")
    def _needs_path(self) -> WorkloadSettings:
        if self.source in ("trace", "files", "frozen") and not self.path:
            raise ValueError(f"source {self.source} needs a path")
        if (self.source == "jobs") != bool(self.jobs):
            raise ValueError(f"source {self.source}: source jobs needs a list of jobs, and no other source has one")
        if self.mixture and (self.source not in ("synthetic", "trace") or self.mapping.mode != "named"):
            raise ValueError(
                f"mixture: source {self.source} and mapping.mode {self.mapping.mode}, expected source synthetic or "
                "trace, whose times of submission it takes, and mapping.mode named"
            )
        if self.source in ("jobs", "frozen") and self.load is not None:
            raise ValueError(f"load: jobs of source {self.source} are taken as they are, expected null")
        if self.source == "files" and self.load is not None and not self.draws:
            raise ValueError("load: files are taken as they are, expected null, or draws of 1 or more")
        if self.mapping.lasting and self.source not in ("synthetic", "trace"):
            raise ValueError(f"mapping.lasting: source {self.source} has no trace to cut into windows, expected false")
        if self.source != "files" and (self.draws or self.train_path or self.validation_path):
            raise ValueError(f"source {self.source}: draws, train_path and validation_path are for source files")
        return self


class ProfileSettings(Settings):
    """How fast models train."""

    folder: ConfigPath | None = None
    """Folder of fitted profiles (*.yaml) or of measurements (a folder for each model), or a file of fitted profiles
    written by `rlpto profile`; llm: the built-in large models. Default: the built-in models."""


class KnowledgeSettings(Settings):
    """Knowledge of policies about jobs."""

    mode: Literal["exact", "noisy", "online"] = "exact"
    """exact: the true profile (an oracle); noisy: the profile with the errors below, drawn once per job (a job's total
    epochs are the completed epochs plus an estimate of the rest); online: the jobs' own observations so far, by which
    they also choose their batch sizes."""
    fits: Literal["own", "shared"] = "own"
    """online; own: each job fits its own observations; shared: jobs of a model share observations (on Ray, jobs of a
    program with the same options and batch size)."""
    fit: FitMethod = "bayes"
    """online; bayes: fits with a prior from other models, and simulated gradient noise grows with the batch; pollux:
    by Pollux's rules. Policy pollux always uses its own fit for simulated jobs. Under both, jobs without observations
    look short."""
    remaining: RemainingKnowledge = "declared"
    """Source of the remaining epochs that policies see; declared: the true number (with the errors below, if noisy);
    learnt: from finished jobs of the same model and user, else of the model; curve: from how much a job's accuracy has
    flattened, compared with curves of other models; learnt_or_curve: learnt where such a job has finished, else curve;
    unknown: `tail` times the epochs that a job has done, the fallback of all other sources where they have no data."""
    history_days: float | None = Field(None, ge=0, le=36_500)
    """learnt, learnt_or_curve; number of days before a window from which finished jobs also count. There are such jobs
    if users, models and lengths are sampled once for the whole trace (workload.mapping.lasting), or if frozen jobs
    include them; frozen jobs allow only null and 0. Default: all days; 0: none."""
    tail: float = Field(2.0, gt=0, le=100)
    """Remaining epochs of a job of unknown length, as a multiple of the epochs it has done."""
    unseen_hours: float = Field(UNSEEN_HOURS, gt=0, le=10**6)
    """online; remaining hours on one GPU assumed for a job whose speed was never observed. A short time compared with
    other jobs makes policies try the job."""
    remaining_sigma: float = Field(0.3, ge=0, le=10)
    """noisy: standard deviation of the logarithm of the error of the remaining work."""
    speed_sigma: float = Field(0.2, ge=0, le=10)
    """noisy: standard deviation of the logarithm of the error of the speed."""
    scaling_sigma: float = Field(0.1, ge=0, le=10)
    """noisy: standard deviation of the exponent e in the error k**e of the speed with k GPUs."""

    @property
    def text(self) -> str:
        """The settings in a line: "exact", "exact, remaining unknown", "online, shared fits, remaining learnt"."""
        fits = [f"{self.fits} fits"] if self.mode == "online" else []
        left = [] if (self.mode, self.remaining) == ("exact", "declared") else [f"remaining {self.remaining}"]
        return ", ".join([self.mode, *fits, *left])

    @property
    def rules(self) -> EstimateRules:
        """The rules by which observations become estimates."""
        shared = self.fits == "shared"
        if self.fit == "pollux":
            return EstimateRules(shared=shared, unseen_hours=self.unseen_hours)
        return EstimateRules(shared, "bayes", NOISE_SLOPE, self.unseen_hours)


class EvaluationSettings(Settings):
    """The windows and seeds on which policies are compared."""

    split: Literal["train", "validation", "test"] = "test"
    """Windows to evaluate on."""
    seeds: int = Field(1, ge=1, le=10_000)
    """Repetitions of every window, with different models and work of the jobs, and different failures."""
    reference: PolicySpec = "fifo"
    """Policy with which each of the others is compared."""


class Config(Settings):
    """One experiment."""

    name: str = Field("experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the experiment, and of its folder under runs/."""
    description: str = ""
    """Purpose of the experiment."""
    seed: int = Field(0, ge=0, le=LARGEST_SEED)
    """Seed of all randomness."""
    cluster: ClusterSettings = ClusterSettings()
    """The cluster's nodes."""
    workload: WorkloadSettings = WorkloadSettings()
    """The source of the jobs."""
    profiles: ProfileSettings = ProfileSettings()
    """How fast models train."""
    knowledge: KnowledgeSettings = KnowledgeSettings()
    """Knowledge of policies about jobs."""
    forecast: ForecastSettings = ForecastSettings()
    """Forecasts of future arrivals."""
    queue: QueueSettings = QueueSettings()
    """Order in which jobs are served."""
    reward: RewardWeights = RewardWeights()
    """Weights of the reward's parts."""
    env: EnvSettings = EnvSettings()
    """An agent's observations, actions and rewards."""
    agent: AgentSettings = AgentSettings()
    """How the agent is trained."""
    simulator: SimulatorSettings = SimulatorSettings()
    """How time passes, when decisions are due, and the cost of a rescale."""
    ray: RaySettings = RaySettings()
    """Real jobs on a Ray cluster."""
    provision: ProvisionerSpec = "reactive"
    """Provisioner of policies that name none (index@average:factor=2 names one): `name` or `name:option=value,...`. It
    decides how many nodes to rent (`rented` in `cluster.nodes`) or to request from Ray (`ray.autoscale`)."""
    policies: tuple[PolicySpec, ...] = Field(("fifo", "srtf", "las"), min_length=1)
    """Policies to evaluate: `name` or `name:option=value,...`, as `rlpto policies` lists them."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """The windows and seeds on which policies are compared."""

    def __hash__(self) -> int:
        """Hash the content, so that a cache can be keyed by the configuration."""
        return hash(self.model_dump_json())


def load_config(
    source: Config | Path | str, overrides: Sequence[str] | Mapping[str, Any] = (), *, option: str = "--set"
) -> Config:
    """Read an experiment file and apply overrides to it.

    source: a file, the name of an example, such as quickstart, or a configuration. overrides: texts `key=value`, such
    as `workload.load=1.1`; or a mapping, nested or with dotted keys. option: the name of the overrides in errors.
    Raises ConfigError, in one line, for any error in either.
    """
    if not isinstance(source, Config | str | Path):
        raise ConfigError(f"config: expected the path of an experiment file or the name of an example, got {source!r}")
    texts = _as_texts(overrides) if isinstance(overrides, Mapping) else overrides
    listed = isinstance(texts, Sequence) and not isinstance(texts, str)
    if not listed or not all(isinstance(override, str) for override in texts):
        raise ConfigError(f"overrides: expected a list of key=value, or a mapping, got {one_line(repr(overrides))}")
    file: YamlFile | None = None
    if isinstance(source, Config):
        data: object = source.model_dump(mode="json")
    else:
        file = read_yaml(_config_file(Path(source)))
        data = file.data
    changed: list[Location] = []
    for override in texts:
        said = f"{option} {one_line(override)}"
        location, value = _parse_override(override, said)
        data = _with_value(data, location, value, said)
        changed.append(location)
    try:
        return Config.model_validate(data, context={"folder": file.path.parent} if file else None)
    except ValidationError as error:
        location, problem = first_problem(error, Config)
        typed = any(location[: len(start)] == start for start in changed)
        raise ConfigError(f"{file.place(location) if file and not typed else option}: {problem}") from None


def with_policies(config: Config, specs: Sequence[str]) -> Config:
    """Return the configuration with other policies, or none. specs: as typed on the command line, so their paths are
    relative to the working directory. Raises ConfigError for a spec that cannot be read."""
    try:
        typed = Config.model_validate({"policies": [*map(TypedOnCommandLine, specs)]}).policies if specs else ()
    except ValidationError as error:
        raise ConfigError(f"--policies: {first_problem(error, Config)[1]}") from None
    return config.model_copy(update={"policies": typed})


def _as_texts(tree: Mapping[str, Any], inside: str = "") -> list[str]:
    """Return a nested mapping as overrides `key=value`. inside: prefix of the keys, such as `workload.`."""
    texts = []
    for key, value in tree.items():
        deeper = isinstance(value, Mapping)
        texts += _as_texts(value, f"{inside}{key}.") if deeper else [f"{inside}{key}={inline_yaml(value)}"]
    return texts


def _config_file(path: Path) -> Path:
    """Return the path itself if it is a file, else the example of that name, even if a folder has the same name. Raises
    ConfigError if there is neither."""
    if not file_there(path) and (found := example_config(path)) is not None:
        return found
    if is_there(path):
        return path
    name = path.relative_to("configs") if Path("configs") in path.parents else path
    if example_config(name) is not None:
        raise ConfigError(f"{path}: no such file here; expected {name.with_suffix('')}, an example that works anywhere")
    near = nearest(str(name.with_suffix("")), [*example_names(), *example_names("results")])
    raise ConfigError(f"{path}: no such file, and no example of that name (`rlpto configs list` lists all); {near}")


def _parse_override(override: str, said: str) -> tuple[Location, object]:
    """Parse an override `a.b.0=value` into its location and its value, which is YAML."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"{said}: expected key=value, such as simulator.interval=30")
    value = _mark_typed(parse_value(text, said))
    return tuple(int(part) if part.isdecimal() and len(part) < _LONGEST_POSITION else part for part in parts), value


def _mark_typed(value: object) -> object:
    if isinstance(value, str):
        return TypedOnCommandLine(value)
    if isinstance(value, list):
        return [_mark_typed(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _mark_typed(entry) for key, entry in value.items()}
    return value


def _with_value(tree: object, location: Location, value: object, said: str) -> object:
    """Return a copy of `tree` in which `location` holds `value`. said: the override, for error messages."""
    if not location:
        return value
    at, *rest = location
    if isinstance(at, int):
        if not isinstance(tree, list):
            raise ConfigError(f"{said}: the file has no list there that has a number {at}; set the whole list")
        if at >= len(tree):
            raise ConfigError(f"{said}: the list there has {len(tree)} entries, counted from 0; got {at}")
        return [_with_value(entry, tuple(rest), value, said) if i == at else entry for i, entry in enumerate(tree)]
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        kind = "a list" if isinstance(tree, list) else "a single value"
        raise ConfigError(f"{said}: there is {kind} in the file where {at} was to be set")
    return {**tree, at: _with_value(tree.get(at), tuple(rest), value, said)}


def resolved_yaml(config: Config) -> str:
    """Return the whole configuration as YAML: every key with its value, and its description as a comment.

    Reading it back gives the same configuration.
    """
    policies = tuple(map(_anywhere, config.policies))
    evaluation = config.evaluation.model_copy(update={"reference": _anywhere(config.evaluation.reference)})
    return described_yaml(config.model_copy(update={"policies": policies, "evaluation": evaluation}))


def _anywhere(spec: str) -> str:
    """Return a policy's spec with paths in the portable form in which all paths are written."""
    return str(parse_spec(spec).with_paths(lambda path: portable(Path(path))))
