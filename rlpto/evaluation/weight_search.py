"""The search of constants by an evolution strategy, resumable after every generation.

CMA-ES as in Hansen, "The CMA Evolution Strategy: A Tutorial" (arXiv:1604.00772), from the package
`cma`. A checkpoint holds the costs of every candidate so far, as JSON. On resume, candidates are drawn
again from the same seed, and the search ends bit for bit as an uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from rlpto.io.arrays import FloatArray
from rlpto.io.errors import CheckpointError, ConfigError
from rlpto.io.files import write_text
from rlpto.io.reading import read_json
from rlpto.io.settings import LARGEST_SEED, Settings

FORMAT = "rlpto tuning 1"
"""First entry of a checkpoint: its kind, and the version of its form."""


class SearchSettings(Settings):
    """How the evolution strategy searches."""

    generations: int = Field(20, ge=1, le=10_000)
    """Generations in all, those before an interruption included."""
    population: int = Field(10, ge=4, le=10_000)
    """Candidates in each generation."""
    step: float = Field(0.1, gt=0, le=10)
    """First standard deviation of candidates, as a fraction of each constant's range."""
    seed: int = Field(0, ge=0, le=LARGEST_SEED)
    """Seed of the search."""


@dataclass(frozen=True)
class Parameter:
    """A constant to search: where the search starts, and the range it stays in."""

    name: str
    start: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.start <= self.high or not self.low < self.high:
            raise ConfigError(f"{self.name}: expected low <= start <= high, got {self.low}, {self.start}, {self.high}")


@dataclass(frozen=True)
class SearchState:
    """Progress of a search. costs: one tuple per generation, of every candidate, in the order drawn.

    best: the candidate with the lowest cost so far, by name. best_cost: its cost.
    mean: the mean of the search distribution, by name.
    """

    costs: tuple[tuple[float, ...], ...]
    best: Mapping[str, float]
    best_cost: float
    mean: Mapping[str, float]


Objective = Callable[[Mapping[str, float], int], float]
"""Cost of a candidate of a generation, counted from 0: finite, lower is better."""


def minimise(
    objective: Objective,
    parameters: Sequence[Parameter],
    settings: SearchSettings,
    checkpoint: Path,
    decisive: Mapping[str, Any],
    *,
    resume: bool = False,
    on_progress: Callable[[SearchState, int], object] = lambda _, __: None,
) -> SearchState:
    """Minimise `objective`; the very first candidate is the start itself.

    checkpoint: written atomically after every generation. decisive: plain data of everything that decides the
    objective. resume: go on from the checkpoint if there is one. on_progress: called at first, and after every
    candidate and generation, with the state after the last generation and the number of candidates tried.

    Raises CheckpointError if the checkpoint is unreadable or of another search, and ConfigError if
    the objective returns something that is not finite.
    """
    digest = fingerprint(parameters, settings, decisive)
    known = read_costs(checkpoint, digest, settings.population) if resume and checkpoint.exists() else ()
    strategy = _Strategy(parameters, settings)
    state = strategy.begin()
    for generation in known:
        state = strategy.learn(strategy.draw(), generation, state)
    on_progress(state, len(known) * settings.population)
    while (number := len(state.costs)) < settings.generations:
        candidates = strategy.draw()
        costs: list[float] = []
        for candidate in candidates:
            point = strategy.named(candidate)
            cost = objective(point, number)
            if not math.isfinite(cost):
                raise ConfigError(f"the objective of the search is {cost} for {point}, expected a finite cost")
            costs.append(cost)
            on_progress(state, number * settings.population + len(costs))
        state = strategy.learn(candidates, costs, state)
        write_text(checkpoint, _checkpoint_json(state, digest), "the checkpoint")
        on_progress(state, len(state.costs) * settings.population)
    return state


def fingerprint(parameters: Sequence[Parameter], settings: SearchSettings, decisive: Mapping[str, Any]) -> str:
    """Digest of what decides a search, except the number of generations, which may be extended."""
    searched = [[p.name, p.start, p.low, p.high] for p in parameters]
    text = json.dumps([FORMAT, searched, settings.model_dump(exclude={"generations"}), decisive], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read_costs(path: Path, digest: str, population: int) -> tuple[tuple[float, ...], ...]:
    """Costs of the generations in a checkpoint. Raises CheckpointError if it is not one of this search."""
    advice = "search without --resume to replace it"
    try:
        content = read_json(path, "a checkpoint", CheckpointError)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {advice}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a tuning checkpoint, expected format {FORMAT!r}")
    if content.get("fingerprint") != digest:
        raise CheckpointError(f"{path}: from a search with another configuration or settings; {advice}")
    costs = content.get("costs")
    if not isinstance(costs, list) or not all(_is_generation(entry, population) for entry in costs):
        raise CheckpointError(f"{path}: broken, expected the costs of {population} candidates in each generation")
    return tuple(tuple(float(cost) for cost in entry) for entry in costs)


def _is_generation(entry: object, population: int) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == population
        and all(isinstance(cost, int | float) and math.isfinite(cost) for cost in entry)
    )


def _checkpoint_json(state: SearchState, digest: str) -> str:
    best = {"best": dict(state.best), "best_cost": state.best_cost}
    content = {"format": FORMAT, "fingerprint": digest, "costs": state.costs, **best}
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


class _Strategy:
    """The evolution strategy in coordinates where every parameter's range is 0 to 1."""

    def __init__(self, parameters: Sequence[Parameter], settings: SearchSettings) -> None:
        import cma  # takes two seconds, needed by searches only

        self._names = [p.name for p in parameters]
        self._low = np.array([p.low for p in parameters])
        self._range = np.array([p.high - p.low for p in parameters])
        self._start = (np.array([p.start for p in parameters]) - self._low) / self._range
        rng = np.random.default_rng(settings.seed)
        options = {
            "bounds": [0.0, 1.0],
            "popsize": settings.population,
            "randn": lambda *shape: rng.standard_normal(shape),
            "seed": np.nan,  # leave NumPy's global state alone
            "verbose": -9,
            "verb_log": 0,
        }
        self._strategy = cma.CMAEvolutionStrategy(self._start, settings.step, options)
        self._first = True

    def begin(self) -> SearchState:
        """Before the first generation."""
        start = self.named(self._start)
        return SearchState((), start, math.inf, start)

    def draw(self) -> list[FloatArray]:
        """Candidates of the next generation."""
        candidates: list[FloatArray] = self._strategy.ask()
        if self._first:
            candidates[0] = self._start.copy()
            self._first = False
        return candidates

    def learn(self, candidates: Sequence[FloatArray], costs: Sequence[float], state: SearchState) -> SearchState:
        """Move the search distribution towards the better candidates."""
        self._strategy.tell(list(candidates), list(costs))
        state = replace(state, costs=(*state.costs, tuple(costs)), mean=self.named(self._strategy.result.xfavorite))
        winner = int(np.argmin(costs))
        if costs[winner] < state.best_cost:
            state = replace(state, best=self.named(candidates[winner]), best_cost=costs[winner])
        return state

    def named(self, point: FloatArray) -> dict[str, float]:
        """Values of the parameters, rounded to six digits so that a YAML file holds them exactly."""
        values = self._low + np.clip(point, 0.0, 1.0) * self._range
        return {name: float(f"{value:.6g}") for name, value in zip(self._names, values, strict=True)}
