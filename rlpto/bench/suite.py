"""The cases of rlpto-bench: jobs, cluster and knowledge of policies."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from rlpto.core.rewards import RewardWeights
from rlpto.io.errors import ConfigError, nearest
from rlpto.io.files import digest as digest_of_file

if TYPE_CHECKING:
    from rlpto.core.jobs import FinishedJob
    from rlpto.envs.cluster_env import ClusterEnv
    from rlpto.envs.vector import ClusterVectorEnv
    from rlpto.experiments.config import Config
    from rlpto.workloads.frozen import FrozenJobs

FOLDER = Path(__file__).parent
SUITE_FILE, DIGESTS_FILE, FIFO_FILE = (FOLDER / name for name in ("suite.yaml", "digests.yaml", "fifo.csv"))
VERSION = 1
"""Version of the suite, which is part of the ids of its environments."""
BUILT = Path("runs/bench/jobs")
"""Folder, in the working directory, in which the jobs of cases that do not ship are built."""
DIVISIONS = ("realistic", "history", "transfer", "rigid", "converging", "rented", "exact")
REALISTIC, HISTORY, TRANSFER, RIGID, CONVERGING, RENTED, EXACT = DIVISIONS
"""Knowledge of policies: of a real scheduler, of one that has the jobs before the window too, the same on clusters that
no policy was tuned on, for jobs of which half or all keep their size, where accuracy counts and where nodes are rented,
and of an oracle."""


@dataclass(frozen=True)
class Case:
    """One case.

    name: the same in all divisions. jobs: name of its file of jobs. division: knowledge of policies. settings: keys of
    the configuration that draws such jobs, `workload` included. ships: whether the file of jobs comes with RLPTO.
    counts: whether the case counts for the score of its division.
    """

    name: str
    jobs: str
    division: str
    settings: Mapping[str, Any]
    ships: bool
    counts: bool

    @property
    def id(self) -> str:
        """Name with the division, for example microsoft04-0.9 (realistic) or microsoft04-0.9-exact."""
        return self.name if self.division == REALISTIC else f"{self.name}-{self.division}"

    @property
    def by_cost(self) -> bool:
        """Whether it is scored by the cost, the opposite of the reward, instead of the mean JCT."""
        return self.division in (CONVERGING, RENTED)

    @property
    def rents(self) -> bool:
        """Whether nodes are rented, so that a policy may name a provisioner."""
        return self.division == RENTED

    @property
    def weights(self) -> RewardWeights:
        """Weights of its reward."""
        return RewardWeights.model_validate(self.settings.get("reward", {}))

    @property
    def digest(self) -> str:
        """Digest of everything that determines the case: jobs after drawing, cluster, failures, knowledge, rules and
        the model that forecasts the demand for rented nodes.

        Raises ConfigError if no digest of its jobs is stored.
        """
        if self.jobs not in (kept := digests()):
            raise ConfigError(f"case {self.id}: {DIGESTS_FILE.name} has no digest of its jobs")
        decides = {key: value for key, value in self.settings.items() if key != "workload"}
        files = [digest_of_file(FOLDER / self.settings["forecast"]["demand"])] if self.rents else []
        text = json.dumps([VERSION, decides, kept[self.jobs], *files], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def draw(self) -> FrozenJobs:
        """Draw the jobs of its test windows, and the jobs that had finished before each, from their source."""
        from rlpto.experiments.experiment import Experiment
        from rlpto.workloads.frozen import FrozenJobs

        experiment = Experiment(self.drawing)
        seed, found, known = experiment.config.seed, FrozenJobs({}), Counter["FinishedJob"]()
        for window in experiment.windows("test"):
            found.windows[window] = experiment.jobs(window, seed)
            if finished := Counter(experiment.past(window, seed)):
                new = (finished - known).elements()
                found.past[window] = sorted(new, key=lambda job: (job.user, job.epochs, str(job.job_type)))
                known = finished
        return found

    @property
    def trains(self) -> bool:
        """Whether policies may be trained and tuned on its workload."""
        return self.division != TRANSFER

    def training(self) -> Config:
        """The configuration with its training and validation windows. Raises ConfigError if it has none."""
        if not self.trains:
            raise ConfigError(
                f"case {self.id}: no policy may be trained or tuned on it, expected another division's case"
            )
        return self.drawing

    @property
    def drawing(self) -> Config:
        """The configuration that draws its jobs: training and validation windows of the same workload, whose jobs all
        finish, since an agent that learns from whole windows needs that."""
        own = {"name": f"bench-{self.id}", "description": f"Training windows of {self.id}"}
        return _config(_merged(self.settings, {**own, "simulator": {"max_hours": None}}))

    def config(self) -> Config:
        """The configuration of the case itself, whose windows are frozen.

        Raises ConfigError if its jobs neither ship nor are built, or differ from the suite's.
        """
        from rlpto.workloads.frozen import digest_of, read_jobs

        file = f"{self.jobs}.parquet"
        path = FOLDER / "jobs" / file if self.ships else BUILT.absolute() / file
        if not path.is_file():
            raise ConfigError(
                f"case {self.id}: {path} is not there; expected `rlpto bench build {self.jobs}` to have made it "
                "from the public files that docs/workloads.md names"
            )
        if digest_of(read_jobs(path)) != digests().get(self.jobs):
            raise ConfigError(f"case {self.id}: {path} has other jobs than version {VERSION} of the suite")
        return _config({**self.settings, "workload": {"source": "frozen", "path": str(path)}})


def case_ids() -> list[str]:
    """Names of all cases, realistic ones first."""
    return [case.id for case in cases()]


@lru_cache(maxsize=1)
def cases() -> tuple[Case, ...]:
    """All cases, realistic ones first."""
    suite = yaml.safe_load(SUITE_FILE.read_text(encoding="utf-8"))
    common, drawn = suite["common"], dict[str, tuple[str, Any, bool]]()
    for ships, sources in ((True, suite["sources"]), (False, suite["built"])):
        for name, settings in sources.items():
            for load in suite["loads"]:
                at_load = _merged(settings, {"workload": {"load": load}})
                drawn[f"{name}-{load}"] = (f"{name}-{load}", _merged(common, at_load), ships)
    for name, jobs in suite["failures"].items():
        drawn[name] = (jobs, _merged(drawn[jobs][1], suite["failing"]), True)
    for name, settings in suite["variants"].items():
        drawn[name] = (name, _merged(common, settings), True)
    for name, own in suite["apart"].items():
        config = yaml.safe_load((FOLDER.parent / "configs" / f"{name}.yaml").read_text(encoding="utf-8"))
        settings = {key: config[key] for key in ("seed", "cluster", "workload", "profiles")}
        drawn[name] = (name, _merged(_merged(common, settings), own), True)
    lasting: dict[str, tuple[str, Any, bool]] = {
        name: (f"{jobs}-{HISTORY}", _merged(settings, suite["lasting"]), ships)
        for name, (jobs, settings, ships) in drawn.items()
        if ships and name not in suite["apart"]
    }
    transfer = dict[str, tuple[str, Any, bool]]()
    for source, settings in suite["transfer"].items():
        name = f"{source}-{settings['workload']['load']}"
        transfer[name] = (f"{name}-{TRANSFER}", _merged(_merged(common, settings), suite["lasting"]), True)
    rigid = dict[str, tuple[str, Any, bool]]()
    for part, users in suite["rigid"].items():
        for name in users["cases"]:
            settings = _merged(lasting[name][1], {"workload": {"mapping": {"rigid": users["share"]}}})
            rigid[f"{name}-{part}"] = (f"{name}-{part}-{RIGID}", settings, True)
    found = {REALISTIC: drawn, HISTORY: lasting, TRANSFER: transfer, RIGID: rigid}
    for division, own in suite["cost"].items():
        found[division] = {}
        for name in own["cases"]:
            base = drawn[name][1] if name in drawn else _merged(common, suite["sources"][name])
            settings = _merged(_merged(base, suite["lasting"]), own["settings"])
            if division == RENTED:  # `rlpto forecast fit microsoft/cluster04 --demand --end train`
                settings = _merged(settings, {"forecast": {"demand": f"demand/{name}.safetensors"}})
            found[division][name] = (f"{name}-{division}", settings, True)
    found[EXACT] = drawn
    return tuple(
        Case(
            name,
            jobs,
            division,
            {**settings, "knowledge": suite["knowledge"][division]},
            ships,
            ships and name not in suite["apart"],
        )
        for division, cases_of in found.items()
        for name, (jobs, settings, ships) in cases_of.items()
    )


def find_case(name: str) -> Case:
    """The case of a name. Raises ConfigError for an unknown name."""
    found = next((case for case in cases() if case.id == name), None)
    if found is None:
        raise ConfigError(f"case {name}: no such case (`rlpto bench list` lists all); {nearest(name, case_ids())}")
    return found


@lru_cache(maxsize=1)
def digests() -> dict[str, str]:
    """Digest of the jobs of every file, by its name."""
    found: dict[str, str] = yaml.safe_load(DIGESTS_FILE.read_text(encoding="utf-8")) or {}
    return found


def case_env(case: str, **settings: Any) -> ClusterEnv:
    """An environment with training windows of a case; takes the arguments of `rlpto/Cluster-v0`, except for config."""
    from rlpto.experiments.environments import cluster_env

    return cluster_env(find_case(case).training(), **settings)


def case_vector_env(num_envs: int = 1, *, case: str, **settings: Any) -> ClusterVectorEnv:
    """Many environments of `case_env` that step together."""
    from rlpto.experiments.environments import vector_env

    return vector_env(num_envs, find_case(case).training(), **settings)


def _config(settings: Mapping[str, Any]) -> Config:
    from rlpto.experiments.config import Config

    return Config.model_validate(settings, context={"folder": FOLDER})


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merged key by key, where `over` takes precedence."""
    found = dict(base)
    for key, value in over.items():
        both = isinstance(base.get(key), Mapping) and isinstance(value, Mapping)
        found[key] = _merged(base[key], value) if both else value
    return found
