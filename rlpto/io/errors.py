"""Errors a user can cause. Every one is a single clear line; the command line exits with code 2."""

import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rlpto.io.terminal import printable

_LISTED = 6
"""Largest number of names in a message."""


class RlptoError(Exception):
    """Base of all errors from bad input. The message is one line with the place, the reason and the expected input."""

    def __str__(self) -> str:
        return printable(" ".join(super().__str__().splitlines()))


class ConfigError(RlptoError):
    """A configuration file or an override is wrong."""


class TraceError(RlptoError):
    """A trace file is unreadable, or has a broken line."""


class ProfileError(RlptoError):
    """A model profile is missing or broken."""


class JobError(RlptoError):
    """A job cannot run on this cluster at all."""


class PolicyError(RlptoError):
    """A policy returned something that is not an allocation."""


class CheckpointError(RlptoError):
    """A saved state (tuning state, evaluation cell, policy file) is unreadable or foreign."""


class TrainingError(RlptoError):
    """Training cannot go on: numbers are no longer finite, or the device is not there."""


class ClusterError(RlptoError):
    """A real cluster cannot be reached, does not fit, or its session database cannot be read."""


def nearest(name: str, known: Sequence[str]) -> str:
    """Return the end of a message on an unknown name: the closest known name, else the first few."""
    if near := difflib.get_close_matches(name, known, 1):
        return f"did you mean {near[0]}?"
    more = f" and {len(known) - _LISTED} more" if len(known) > _LISTED else ""
    return f"expected one of {', '.join(known[:_LISTED])}{more}"


def system_reason(refused: OSError) -> str:
    """The system's reason for refusing something, to end a message with, such as `no such file or directory`."""
    return (refused.strerror or str(refused) or type(refused).__name__).lower()


@contextmanager
def refusals_as(error: type[RlptoError], what: str, expected: str = "") -> Iterator[None]:
    """Turn an OSError of the block into `error` with `what` and the system's reason."""
    try:
        yield
    except OSError as refused:
        raise error(f"{what}: {system_reason(refused)}{expected}") from None
