"""The model card of an exported agent: the file's manifest as Markdown, in the form of model hubs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlpto.agents.archive import AGENT, INDEX_WEIGHTS, NODES, NOT_TRAINED, index_weights_of, state_of
from rlpto.io.archive import Archive, read_archive
from rlpto.io.errors import ConfigError
from rlpto.io.files import digest, is_there
from rlpto.io.markdown import markdown_table
from rlpto.policies.index_weights import WEIGHT_NAMES

_START = "---\nlibrary_name: rlpto\n"
"""Beginning of every card."""
CURVE = ("gain", "reward_per_job", "reward", "jct_mean", "jct_p95")
"""Figures of an evaluation that the validation curve shows, if present."""
_TEXT = """tags:
- reinforcement-learning
- scheduling
---

# {name}

An agent of RLPTO: it decides how many {decides}, in a cluster for distributed deep-learning training.
{kind}

## Use

```
hf download OWNER/NAME agent.safetensors --local-dir .
rlpto evaluate {used}
```

## Where it comes from

{origin}
"""
_ALLOCATES = {
    "decides": "GPUs each job gets",
    "used": "quickstart --policies agent:file=agent.safetensors,fifo",
}
_RENTS = {
    "decides": "nodes are rented",
    "used": "rented --policies fifo@agent:file=agent.safetensors,fifo@reactive",
}


def card_of(file: Path, scores: Sequence[str] = ()) -> str:
    """The card of an exported agent; entries missing from its manifest are omitted. scores: lines on its scores.

    Raises CheckpointError if the file is no exported agent, or its index weights cannot be used.
    """
    agent = read_archive(file, (AGENT,))
    unit, origin = "windows" if INDEX_WEIGHTS in agent.manifest else "steps", _origin(agent) | {"SHA-256": digest(file)}
    known = [{"what": what, "value": value} for what, value in origin.items() if value is not None]
    does, table = _RENTS if NODES in agent.manifest else _ALLOCATES, "\n".join(markdown_table(known))
    text = _START + _TEXT.format(name=file.stem, kind=_kind(agent, file), origin=table, **does)
    history = agent.manifest.get("history")
    rows = [row for row in history if isinstance(row, dict)] if isinstance(history, list) else []
    if shown := [name for name in CURVE if any(name in row for row in rows)]:
        curve = [{unit: row.get("steps")} | {name: row.get(name) for name in shown} for row in rows]
        text += "\n".join(
            ["\n## Validation\n\nOn windows that it does not learn from; JCT [s].\n", *markdown_table(curve), ""]
        )
    return text + "\n".join([*scores, ""] if scores else [])


def check_target(path: Path) -> None:
    """Raise ConfigError if a path cannot take a card because something else exists there."""
    start = ""
    if path.is_file():
        with path.open(encoding="utf-8", errors="replace") as there:
            start = there.read(len(_START))
    if is_there(path) and start != _START:
        raise ConfigError(f"{path}: there, and no card of an agent; expected another name for the agent")


def _kind(agent: Archive, file: Path) -> str:
    """A description of an agent, which says so if it is not trained."""
    kind = "It is a network that sets the weights of a greedy index for every state."
    if NODES in agent.manifest:
        kind = "It is a network that asks every minute for more or fewer GPUs than the heuristic it starts from."
    if INDEX_WEIGHTS in agent.manifest:
        size = len(index_weights_of(agent, file))
        network = " and a network that gives every job bonuses" if size > len(WEIGHT_NAMES) else ""
        kind = f"It is {size} numbers: weights of a greedy index{network}."
    state = state_of(agent.manifest, agent.arrays)
    return f"{kind} **{state}**: it decides as its start does." if state == NOT_TRAINED else kind


def _origin(agent: Archive) -> dict[str, object]:
    """Facts about the training by name; None for missing ones."""
    said, best, windows = agent.manifest, agent.manifest.get("best"), INDEX_WEIGHTS in agent.manifest
    config = ("provenance", "config")
    if isinstance(best, float):
        best = f"{best:+.2%} over the start" if windows else f"reward per job {best:+.4f}"
    return {
        "state": state_of(agent.manifest, agent.arrays),
        "experiment": _at(said, *config, "name"),
        "about": _at(said, *config, "description"),
        "trained further from": _at(said, "provenance", "fine_tuned_from", "config", "name"),
        "speeds of jobs (`knowledge.mode`)": _at(said, *config, "knowledge", "mode"),
        "remaining work (`knowledge.remaining`)": _at(said, *config, "knowledge", "remaining"),
        "seed": said.get("seed"),
        "windows" if windows else "steps": said.get("steps"),
        "best validation of the training": best,
        "RLPTO": said.get("rlpto"),
        "commit": _at(said, "provenance", "commit"),
        "digest of the training": said.get("digest"),
    }


def _at(data: object, *keys: str) -> object:
    """The value under these keys in nested data, or None."""
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data
