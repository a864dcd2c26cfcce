"""The model card of an exported agent: Markdown that says what the file's manifest says, in the form of model hubs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlpto.agents.archive import AGENT, NOT_TRAINED, STEERING, Archive, read_archive
from rlpto.io.files import digest
from rlpto.io.reading import one_line
from rlpto.policies.index_weights import VECTOR_SIZES

CURVE = ("gain", "reward_per_job", "reward", "jct_mean", "jct_p95")
"""Figures of an evaluation that the table of the validation curve shows, where there are any."""


@dataclass(frozen=True)
class Benchmarked:
    """What a submission to the benchmark scores. policies: its specs. training_cpu_s: of its card, CPU-seconds.

    scores: by division, with its 95 % interval. cases: the score of each case, by division.
    """

    suite: int
    policies: Sequence[str]
    training_cpu_s: float
    scores: Mapping[str, tuple[float, float, float]]
    cases: Mapping[str, Mapping[str, float]]


def card_of(file: Path, results: Benchmarked | None = None) -> str:
    """The card of an exported agent. Raises CheckpointError if the file is none."""
    return card(read_archive(file, (AGENT,)), file.name, digest(file), results)


def card(archive: Archive, file: str, sha256: str, results: Benchmarked | None = None) -> str:
    """The card of an agent in a file of that name and digest. What its manifest lacks is left out."""
    name = file.removesuffix(".zip")
    front = yaml.safe_dump(_front(name, results), sort_keys=False, allow_unicode=True)
    unit = "windows" if STEERING in archive.arrays else "steps"
    lines = [
        f"---\n{front}---\n\n# {name}\n\nAn agent of RLPTO: it decides how many GPUs each job gets, in a cluster for",
        f"distributed deep-learning training. {_kind(archive)}\n\n## Use\n\n```\nrlpto hub load OWNER/NAME -o {file}",
        f"rlpto evaluate quickstart --policies agent:file={file},fifo\n```\n\n## Where it comes from\n",
        *_table(("what", "value"), (row for row in _origin(archive, unit, sha256) if row[1] is not None)),
        *_curve(archive.manifest.get("history"), unit),
        *(() if results is None else _scores(results)),
    ]
    return "\n".join(lines)


def _front(name: str, results: Benchmarked | None) -> dict[str, Any]:
    """What hubs read: a library, tags, scores."""
    front: dict[str, Any] = {"library_name": "rlpto", "tags": ["reinforcement-learning", "scheduling"]}
    if results is not None and results.scores:
        found = [
            {
                "task": {"type": "reinforcement-learning"},
                "dataset": {"type": "rlpto-bench", "name": f"rlpto bench, suite {results.suite}, {division}"},
                "metrics": [{"type": "score", "value": round(score[0], 2)}],
            }
            for division, score in results.scores.items()
        ]
        front["model-index"] = [{"name": name, "results": found}]
    return front


def _kind(archive: Archive) -> str:
    """What an agent is, and whether it is more than its start."""
    kind = "It is a network that sets the weights of a greedy index for every state."
    if STEERING in archive.arrays:
        size = len(archive.arrays[STEERING])
        network = " and a network that gives every job bonuses" if size == VECTOR_SIZES[1] else ""
        kind = f"It is {size} numbers: weights of a greedy index{network}."
    return f"{kind} **{archive.state}**: it decides as its start." if archive.state == NOT_TRAINED else kind


def _origin(archive: Archive, unit: str, sha256: str) -> Iterator[tuple[str, object]]:
    """Rows on the training; None for what the manifest does not say."""
    manifest, best = archive.manifest, archive.manifest.get("best")
    config = ("provenance", "config")
    yield "state", archive.state
    yield "experiment", _at(manifest, *config, "name")
    yield "about", _at(manifest, *config, "description")
    yield "trained further from", _at(manifest, "provenance", "fine_tuned_from", "config", "name")
    yield "speeds of jobs (`knowledge.mode`)", _at(manifest, *config, "knowledge", "mode")
    yield "remaining work (`knowledge.remaining`)", _at(manifest, *config, "knowledge", "remaining")
    yield "seed", manifest.get("seed")
    yield unit, manifest.get("steps")
    if isinstance(best, int | float):
        gain = unit == "windows"
        yield (
            "best validation of the training",
            f"{best:+.2%} over the start" if gain else f"reward per job {best:+.4f}",
        )
    yield "RLPTO", manifest.get("rlpto")
    yield "commit", _at(manifest, "provenance", "commit")
    yield "digest of the training", manifest.get("digest")
    yield "SHA-256 of the file", sha256


def _curve(history: object, unit: str) -> Iterator[str]:
    """The validation curve up to this agent; nothing where the manifest has none."""
    rows = [row for row in history if isinstance(row, dict)] if isinstance(history, list) else []
    names = [name for name in CURVE if any(name in row for row in rows)]
    if names:
        yield "## Validation\n\nOn windows that it does not learn from, up to this agent; JCT [s].\n"
        yield from _table((unit, *names), ([row.get("steps"), *map(row.get, names)] for row in rows))


def _scores(results: Benchmarked) -> Iterator[str]:
    """Scores by division and case."""
    seeds = f", {len(results.policies)} seeds of a training," if len(results.policies) > 1 else ""
    yield f"## Scores\n\n`rlpto bench run` of {_cell(', '.join(results.policies))}{seeds} on suite {results.suite}:"
    yield "0 is `fifo`, 100 the lower bound of mean JCT; intervals (95 %) over windows and policies.\n"
    if results.training_cpu_s:
        yield f"CPU-seconds of all training, as the submission says: {results.training_cpu_s:.0f}.\n"
    for division, cases in results.cases.items():
        score = results.scores.get(division)
        whole = [] if score is None else [(f"**{division}**", "{:.1f} [{:.1f}, {:.1f}]".format(*score))]
        yield from _table(("case", "score"), [*whole, *((case, f"{value:.1f}") for case, value in cases.items())])


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """A table, and an empty line."""
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(map(_cell, row))} |"
    yield ""


def _cell(value: object) -> str:
    """A value on one line, that ends no cell."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else one_line(value).replace("|", "\\|").replace("<", "&lt;")


def _at(data: object, *keys: str) -> object:
    """What stands in nested data, None where it is not there."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data
