"""Policies: the protocols they satisfy, their options, and their base class."""

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

    A policy may request more GPUs than there are: `rlpto.core.queues.admit` trims requests in queue order. A policy may
    keep a memory between calls; `reset` clears it.
    """

    name: str

    def reset(self, seed: int) -> None:
        """Forget everything; `seed` fixes all randomness until the next reset."""

    def __call__(self, state: ClusterState) -> Allocation:
        """Decide. Called at every decision point, with at least one active job."""


@runtime_checkable
class StandingPolicy(Protocol):
    """A policy that says how long its decision is valid. Optional: other policies decide at every decision point."""

    def stands_until(self, state: ClusterState) -> float:
        """Time in seconds (of `state.time`) until which the decision on `state` cannot change.

        state: state of the last decision, which was just taken. The decision must remain valid as long as no job
        arrives or finishes, no node changes, and the queue order and the priority classes of the jobs stay the same.
        """


@runtime_checkable
class LookaheadPolicy(Protocol):
    """A policy that simulates forward when it decides. Optional, like `StandingPolicy`."""

    def frozen(self) -> Policy:
        """Return a snapshot policy, which decides as this policy does until its next lookahead.

        Simulations of the future use the snapshot, to avoid a lookahead within a lookahead.
        """


def frozen(policy: Policy) -> Policy:
    """Return the policy itself, or the snapshot policy if it looks ahead."""
    return policy.frozen() if isinstance(policy, LookaheadPolicy) else policy


def chooses(policy: Policy, what: Literal["batch_sizes", "servers"]) -> bool:
    """Whether a policy's allocations may contain batch sizes or numbers of parameter servers.

    The policy's attribute chooses_WHAT says so; a policy that delegates chooses if any of its `policies` does. Speeds
    at other choices are compiled only for such policies.
    """
    return any(getattr(one, f"chooses_{what}", False) for one in getattr(policy, "policies", (policy,)))


def reads_speeds(policy: Policy) -> bool:
    """Whether a policy reads speeds and remaining times: its attribute `reads_speeds`. Default: True.

    If speeds are learnt from observations, a policy that does not read them gets the same speed for any number of GPUs,
    which saves time, unless the queue needs speeds to choose GPU types.
    """
    return bool(getattr(policy, "reads_speeds", True))


@contextmanager
def naming_line(name: str, policy: object) -> Iterator[None]:
    """Turn an exception in a user's policy into a PolicyError with file and line of the user's code.

    policy: the running policy or its class; the classes in `policies` count if it delegates. Other exceptions pass.
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
    """Options of a policy without any options."""


class BackfillOptions(Settings):
    """Options of a policy that gives each waiting job all the GPUs it requested, or none."""

    backfill: bool = False
    """Let later jobs that fit pass a job that does not; otherwise the first job that does not fit blocks the rest."""


class OneNodeOptions(BackfillOptions):
    """Options of a policy that may keep every job on one node."""

    one_node: bool = False
    """Start a job only on a single node, the first with room for it; larger jobs than any node may span nodes."""


OptionsT = TypeVar("OptionsT", bound=Settings)


class BasePolicy(Generic[OptionsT]):
    """Base class of this project's policies: a name, typed options, and `reset` for policies with a memory."""

    name: str
    Options: ClassVar[type[Settings]] = NoOptions

    def __init__(self, options: OptionsT | None = None) -> None:
        self.options = options or cast(OptionsT, self.Options())
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Clear the memory, if there is one. The constructor calls this, so create the memory here and nowhere else."""


class StandsUntilEvent:
    """A decision that only an arrival, a finish or a change of nodes can change."""

    def stands_until(self, state: ClusterState) -> float:  # noqa: ARG002
        """Return infinity: the decision is valid until an event."""
        return math.inf


def unit_speed(jobs: JobTable) -> FloatArray:
    """[n] work per second and GPU on min_gpus GPUs: the unit of speed-ups. For most jobs it is the speed of one GPU."""
    lowest = jobs.min_gpus
    speed: FloatArray = jobs.speed[np.arange(len(jobs)), lowest] / lowest
    return speed


class PolicyClass(Protocol):
    """The class of a policy, for the registry and for a plug-in's entry point.

    summary: one line that says how the policy decides. source: where it was published. Options: class of its options.
    Two attributes are optional. POSITIONAL: name of the option that may be given without its name, such as
    `pretrained:synthetic`. COMPLETE: False if the policy cannot run without options.
    """

    summary: str
    source: str

    @property
    def Options(self) -> type[Settings]:  # noqa: N802
        """Class of the options."""

    def __call__(self, options: Any) -> Policy:
        """Create a policy with these options, an instance of `Options`."""
