"""What a policy is."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, cast, runtime_checkable

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.job_table import JobTable
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import PolicyError, RlptoError
from rlpto.io.reading import one_line
from rlpto.io.settings import Settings


class Policy(Protocol):
    """A function from the table of jobs to the number of GPUs each job gets.

    A policy may wish for more GPUs than there are: wishes are trimmed in queue order, in one place
    (`rlpto.core.queues.admit`). It may keep a memory between calls; `reset` clears it.
    """

    name: str

    def reset(self, seed: int) -> None:
        """Forget everything; `seed` fixes all randomness until the next reset."""

    def __call__(self, state: ClusterState) -> Allocation:
        """Decide. Called at every decision point, with at least one active job."""


@runtime_checkable
class StandingPolicy(Protocol):
    """A policy that says for how long its decision stands. Optional: others are asked at every decision point."""

    def stands_until(self, state: ClusterState) -> float:
        """Time in seconds (of `state.time`) until which the decision on `state` cannot change.

        state: the one of the last decision; asked right after it. The promise holds as long as no job arrives or
        finishes, no node changes, and the queue order and the priority classes of the jobs stay the same.
        """


@runtime_checkable
class LookaheadPolicy(Protocol):
    """A policy that simulates forward when it decides. Optional, as `StandingPolicy` is."""

    def frozen(self) -> Policy:
        """A policy that decides as this one does until it looks ahead again.

        For predictions, which would look ahead within a look ahead otherwise.
        """


def frozen(policy: Policy) -> Policy:
    """The policy itself, or the frozen form of one that looks ahead."""
    return policy.frozen() if isinstance(policy, LookaheadPolicy) else policy


def chooses(policy: Policy, what: Literal["batch_sizes", "servers"]) -> bool:
    """Whether a policy's allocations may have batch sizes or numbers of parameter servers.

    Its attribute chooses_WHAT says so, if it has one; of one that delegates, that of any of its `policies`. Speeds at
    other choices are compiled only for such policies.
    """
    return any(getattr(one, f"chooses_{what}", False) for one in getattr(policy, "policies", (policy,)))


def reads_speeds(policy: Policy) -> bool:
    """Whether a policy looks at speeds and remaining times, as its attribute of this name says, if it has one.

    Where jobs know what they observe, one that does not is shown the same speed for any GPUs, which saves time, unless
    the queue needs speeds to choose kinds of GPU.
    """
    return bool(getattr(policy, "reads_speeds", True))


@contextmanager
def naming_line(name: str, policy: object) -> Iterator[None]:
    """Turn an exception in a user's policy into a PolicyError with file and line of the user's code.

    policy: the policy that runs inside, or its class; one that delegates has `policies`. Other exceptions pass.
    """
    try:
        yield
    except RlptoError:
        raise
    except Exception as error:
        modules = {str(one.__module__) for one in getattr(policy, "policies", (policy,))}
        users = {module for module in modules if not module.startswith("rlpto.")}
        frames = traceback.walk_tb(error.__traceback__)
        lines = [(frame.f_code, line) for frame, line in frames if frame.f_globals.get("__name__") in users]
        if not lines:
            raise
        (code, line), said = lines[-1], one_line(traceback.format_exception_only(error)[-1])
        raise PolicyError(f"policy {name}: {code.co_filename}:{line}: {said}") from error


class NoOptions(Settings):
    """Options of a policy that has none."""


class BackfillOptions(Settings):
    """Options of a policy that gives waiting jobs what they ask for, all or nothing."""

    backfill: bool = False
    """Let later jobs that fit pass a job that does not; without it the first one that does not fit blocks."""


class OneNodeOptions(BackfillOptions):
    """Options of a policy that may keep every job on one node."""

    one_node: bool = False
    """Start a job only where one node has room for it, on the first that has, as long as any node is large enough."""


OptionsT = TypeVar("OptionsT", bound=Settings)


class BasePolicy(Generic[OptionsT]):
    """What this project's policies have in common: a name and typed options; one with a memory has a `reset`."""

    name: str
    Options: ClassVar[type[Settings]] = NoOptions

    def __init__(self, options: OptionsT | None = None) -> None:
        self.options = options or cast(OptionsT, self.Options())
        self.reset(0)

    def reset(self, seed: int) -> None:
        """See `Policy`. Called by the constructor, too, so a memory is made here and nowhere else."""


class StandsUntilEvent:
    """A decision that only an arrival, a finish or a change of nodes can change."""

    def stands_until(self, state: ClusterState) -> float:  # noqa: ARG002
        """See `StandingPolicy`."""
        return math.inf


def unit_speed(jobs: JobTable) -> FloatArray:
    """[n] work per second and GPU on min_gpus GPUs: the unit of speed-ups, one GPU's speed for most jobs."""
    lowest = jobs.min_gpus
    speed: FloatArray = jobs.speed[np.arange(len(jobs)), lowest] / lowest
    return speed


class PolicyClass(Protocol):
    """What the registry, and a plug-in's entry point, expects of a policy's class.

    summary: one line, what it does. source: where it was published. Options: its typed options.
    Two attributes may be there: POSITIONAL, name of the option that may be given without its name, as in
    `pretrained:synthetic`; COMPLETE, False if the policy is none without options.
    """

    summary: str
    source: str

    @property
    def Options(self) -> type[Settings]:  # noqa: N802
        """Class of the options."""

    def __call__(self, options: Any) -> Policy:
        """A new policy with these options, an instance of `Options`."""
