"""The table of what is fuzzed, and the forms that targets have in common.

A target takes a generator and an empty folder, breaks one input and uses it as a user would. It may end well or with
one of the errors that are documented; anything else is a finding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from _fuzz_mutations import (
    broken_bytes,
    broken_text,
    broken_tree,
    plain_json,
)
from gymnasium.error import Error as GymnasiumError
from numpy.random import Generator

from rlpto.experiments.environments import cluster_env
from rlpto.forecasting.errors import ForecastError
from rlpto.io.errors import RlptoError

ROOT = Path(__file__).resolve().parents[1]
EXPECTED_ERRORS = (RlptoError, ForecastError)
"""What bad files and settings may raise."""
ARGUMENT_ERRORS = (*EXPECTED_ERRORS, ValueError, TypeError, GymnasiumError)
"""What bad arguments of the Python API may raise."""

Target = Callable[[Generator, Path], object]
TARGETS: list[tuple[float, Target, tuple[type[BaseException], ...]]] = []
"""How often each is drawn, and the errors it may end with."""
PREPARED: list[Callable[[], object]] = []
"""What targets need is made by these, once, before time and memory are bounded."""

Made = TypeVar("Made")


def target(weight: float, allowed: tuple[type[BaseException], ...] = EXPECTED_ERRORS) -> Callable[[Target], Target]:
    def add(function: Target) -> Target:
        TARGETS.append((weight, function, allowed))
        return function

    return add


def prepared(make: Callable[[], Made]) -> Callable[[], Made]:
    """Decorator: `make` is called once, see PREPARED."""
    made = cache(make)
    PREPARED.append(made)
    return made


def broken_file(
    weight: float, name: str, broken: Callable[[Generator], bytes]
) -> Callable[[Callable[[Path], object]], Target]:
    """A target that hands a file called `name`, with content as `broken` makes it, to the function it decorates."""

    def add(use: Callable[[Path], object]) -> Target:
        def read(rng: Generator, folder: Path) -> object:
            return use(put_file(folder, name, broken(rng)))

        read.__name__ = use.__name__
        return target(weight)(read)

    return add


def put_file(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def broken_yaml(rng: Generator, text: str) -> bytes:
    """A YAML text broken as text, or with one of its values replaced."""
    if rng.random() < 0.4:
        return broken_text(rng, text)
    return yaml.dump(broken_tree(rng, yaml.safe_load(text)), allow_unicode=True).encode("utf-8", "replace")


def broken_json(rng: Generator, content: bytes) -> bytes:
    return broken_bytes(rng, content) if rng.random() < 0.3 else plain_json(broken_tree(rng, json.loads(content)))


@prepared
def small_environment() -> Any:
    env = cluster_env(None, max_jobs=6, horizon=2)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    return env
