"""The trained agent as a policy like any other. Imports torch only when an agent is made."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import ValidationError

from rlpto.agents.archive import FORMATS, INDEX_WEIGHTS, NOT_TRAINED, index_weights_of, state_of
from rlpto.agents.settings import BEST, LAST
from rlpto.core.cluster import Allocation, ClusterState
from rlpto.envs.acting import ActionPolicy
from rlpto.envs.observation import Observation
from rlpto.io.archive import read_archive
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.errors import ConfigError, PolicyError, RlptoError
from rlpto.io.files import file_there
from rlpto.io.paths import example_config, example_names
from rlpto.io.settings import Settings
from rlpto.policies.index import steer
from rlpto.policies.index_weights import WEIGHT_NAMES
from rlpto.policies.spec import UNNAMED, PolicySpec, parse_spec

if TYPE_CHECKING:
    from rlpto.agents.trained import TrainedAgent


class AgentOptions(Settings):
    """Options of `agent`."""

    file: Path | None = None
    """Exported agent or checkpoint."""
    run: Path | None = None
    """Folder that `rlpto train` has written, instead of `file`. Its best checkpoint, or else its last, is used."""

    def checkpoint(self) -> Path:
        """The file to use. Raises ConfigError if none or both are named, or the run has no checkpoint."""
        if self.file is not None and self.run is None:
            return self.file
        if self.run is not None and self.file is None:
            return run_file(self.run)
        raise ConfigError("policy agent: expected a training or a file, agent:run=FOLDER or agent:file=FILE")


class PretrainedOptions(Settings):
    """Options of `pretrained`."""

    agent: str
    """Name of the agent: a file in configs/pretrained/, without its ending."""

    def checkpoint(self) -> Path:
        """The file to use. Raises ConfigError if no agent has this name."""
        return pretrained_file(self.agent)


class Agent:
    """A trained agent: the index policy, with fixed weights or with weights that a network sets at each decision."""

    summary = "trained agent that steers the index, elastic"
    source = "this project; PPO (Schulman et al. 2017) on whole windows or single decisions, or evolution"
    Options: type[Settings] = AgentOptions
    COMPLETE = False

    def __init__(
        self, options: AgentOptions | PretrainedOptions | None = None, trained: TrainedAgent | None = None
    ) -> None:
        """trained: agent to use instead of the file in `options`."""
        self.name = "agent"
        self.options = options or AgentOptions()
        self._decides: ActionPolicy | None = None
        self._index_weights: FloatArray = np.zeros(0)
        if trained is None:
            path = self.options.checkpoint()
            archive = read_archive(path, FORMATS)
            if INDEX_WEIGHTS in archive.manifest:
                self._index_weights = index_weights_of(archive, path)
            else:
                from rlpto.agents.trained import agent_of

                trained = agent_of(archive, path)
        if trained is not None:
            # Partial, not a closure: predictions copy and pickle policies.
            self._decides = ActionPolicy(self.name, partial(_act_alone, trained), trained.env, trained.start)

    @property
    def weight_steps(self) -> dict[str, float]:
        """Return the agent's latest action by index weight. Empty before the first decision and for fixed weights."""
        action = np.zeros(0) if self._decides is None else self._decides.action
        return dict(zip(WEIGHT_NAMES, map(float, action.reshape(-1)), strict=False))

    def reset(self, seed: int) -> None:
        """Forget the latest action. The agent is deterministic, so the seed is not used."""
        del seed
        if self._decides is not None:
            self._decides.reset()

    def __call__(self, state: ClusterState) -> Allocation:
        """Return the GPUs of every job. Raises PolicyError on a cluster without GPUs."""
        if state.gpus_per_node < 1:
            raise PolicyError(f"policy {self.name}: the cluster has no GPUs, expected nodes with at least one")
        if self._decides is not None:
            return self._decides(state)
        jobs = state.jobs
        return Allocation(steer(state.time, state.capacity, jobs.records, jobs.speed, self._index_weights[None]))


def _act_alone(trained: TrainedAgent, seen: Observation) -> AnyArray:
    """The agent's best action for a single observation."""
    action: AnyArray = trained.act(Observation(*(part[None] for part in seen)))[0]
    return action


class Pretrained(Agent):
    """An agent that comes with RLPTO."""

    summary = "trained agent that comes with RLPTO, as in pretrained:NAME"
    Options = PretrainedOptions
    POSITIONAL = "agent"


def shown_label(spec: str) -> str:
    """The label of a policy in tables, which says so if the policy is an agent that is not trained.

    An agent whose file is gone or can no longer be read keeps its plain label.
    """
    parsed = parse_spec(spec)
    return f"{parsed.label} ({NOT_TRAINED})" if any(map(_not_trained, parsed.singles)) else parsed.label


def _not_trained(spec: PolicySpec) -> bool:
    """Whether a spec names an agent that has not been trained: it still acts as its start heuristic."""
    if spec.name not in ("agent", "pretrained"):
        return False
    options = {Pretrained.POSITIONAL if key == UNNAMED else key: value for key, value in spec.options.items()}
    options.pop("label", None)
    kind = AgentOptions if spec.name == "agent" else PretrainedOptions
    try:
        archive = read_archive(kind.model_validate(options).checkpoint(), FORMATS)
        return state_of(archive.manifest, archive.arrays) == NOT_TRAINED
    except (RlptoError, ValidationError):
        return False


def run_file(run: Path) -> Path:
    """The best checkpoint of a run, else its last. Raises ConfigError if it has none."""
    for name in (BEST, LAST):
        if file_there(run / name):
            return run / name
    raise ConfigError(f"{run}: no {BEST} or {LAST} there, expected a folder that `rlpto train` has written")


def pretrained_file(name: str) -> Path:
    """The file of an agent that comes with RLPTO. Raises ConfigError if no agent has this name."""
    path = example_config(f"pretrained/{name}.safetensors")
    if path is None:
        names = [Path(known).name for known in example_names("pretrained", ".safetensors")]
        raise ConfigError(f"no pretrained agent {name!r}: expected one of {', '.join(names)}")
    return path
