"""The model card of an exported agent says what the file's manifest says, and nothing else."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlpto.agents.archive import AGENT, CHECKPOINT, FORMATS, INDEX_WEIGHTS, START
from rlpto.agents.card import card_of
from rlpto.agents.checkpoint import export_agent
from rlpto.agents.policy import pretrained_file
from rlpto.io.archive import read_archive, write_archive
from rlpto.io.errors import CheckpointError
from rlpto.io.files import digest


def write_agent(path: Path, lacking: tuple[str, ...] = (), trained: bool = True, **said: Any) -> Path:
    """An agent that ships, with other statements in its manifest."""
    archive = read_archive(pretrained_file("philly"), FORMATS)
    own = archive.manifest if trained else archive.manifest | {START: archive.manifest[INDEX_WEIGHTS]}
    manifest = {key: value for key, value in (own | said).items() if key not in lacking}
    write_archive(path, manifest, archive.arrays, "an agent")
    return path


def rows_of(card: str, heading: str) -> list[list[str]]:
    """Cells of the table below a heading, without the line between its head and its body."""
    _, _, part = card.partition(f"\n## {heading}\n")
    lines = [line for line in part.split("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in [*lines[:1], *lines[2:]]]


def test_a_card_states_the_origin_in_the_form_of_hubs(tmp_path: Path) -> None:
    path = write_agent(tmp_path / "mine.safetensors", digest="abc", seed=7, steps=123, best=-0.0125)
    card = card_of(path)
    front = yaml.safe_load(card.split("---\n")[1])
    assert front == {"library_name": "rlpto", "tags": ["reinforcement-learning", "scheduling"]}
    assert "# mine\n" in card
    assert "--policies agent:file=agent.safetensors,fifo\n" in card
    assert dict(rows_of(card, "Where it comes from")) == {
        "what": "value",
        "state": "trained",
        "experiment": "results-philly",
        "about": "Recorded jobs of Microsoft's Philly on 16 nodes x 4 GPUs",
        "speeds of jobs (`knowledge.mode`)": "exact",
        "remaining work (`knowledge.remaining`)": "declared",
        "seed": "7",
        "windows": "123",
        "best validation of the training": "-1.25% over the start",
        "RLPTO": "0.2.0",
        "commit": "562f159b4a5d",
        "digest of the training": "abc",
        "SHA-256": digest(path),
    }


def test_what_the_manifest_lacks_is_left_out(tmp_path: Path) -> None:
    card = card_of(write_agent(tmp_path / "a.safetensors", lacking=("provenance", "seed", "steps", "best", "rlpto")))
    assert [what for what, _ in rows_of(card, "Where it comes from")] == ["what", "state", "SHA-256"]
    assert "## Validation" not in card
    assert "## Scores" not in card
    assert "None" not in card


def test_an_agent_that_is_its_start_says_so_and_a_checkpoint_has_no_card(tmp_path: Path) -> None:
    card = card_of(write_agent(tmp_path / "b.safetensors", trained=False))
    assert "**start, not trained**: it decides as its start does" in card
    assert ["state", "start, not trained"] in rows_of(card, "Where it comes from")
    with pytest.raises(CheckpointError, match="expected rlpto agent 1"):
        card_of(write_agent(tmp_path / "a.safetensors", format=CHECKPOINT))


def test_the_validation_curve_of_a_checkpoint_reaches_the_card_by_an_export(tmp_path: Path) -> None:
    curve = [{"steps": 0.0, "gain": 0.0, "jct_mean": 100.5}, {"steps": 64.0, "gain": None, "jct_mean": 99.25}]
    run = write_agent(tmp_path / "best.safetensors", format=CHECKPOINT, history=curve, digest="d1")
    export_agent(run, tmp_path / "agent.safetensors")
    assert read_archive(tmp_path / "agent.safetensors", (AGENT,)).manifest["digest"] == "d1"
    expected = [["windows", "gain", "jct_mean"], ["0", "0", "100.5"], ["64", "", "99.25"]]
    assert rows_of(card_of(tmp_path / "agent.safetensors"), "Validation") == expected


@pytest.mark.slow
def test_an_agent_that_learnt_from_decisions_has_steps_and_rewards_per_job(decided: Path, tmp_path: Path) -> None:
    export_agent(decided / "best.safetensors", tmp_path / "agent.safetensors")
    said = read_archive(tmp_path / "agent.safetensors", (AGENT,)).manifest
    card = card_of(tmp_path / "agent.safetensors")
    origin = dict(rows_of(card, "Where it comes from"))
    assert origin["steps"] == str(said["steps"])
    assert origin["best validation of the training"] == f"reward per job {said['best']:+.4f}"
    head, *rows = rows_of(card, "Validation")
    assert head[:2] == ["steps", "reward_per_job"]
    assert [row[0] for row in rows] == [f"{row['steps']:.0f}" for row in said["history"]]


def test_text_of_a_manifest_ends_no_cell_and_starts_no_line(tmp_path: Path) -> None:
    hostile = {"config": {"name": "a|b\n## Scores\n<script>", "description": ["x"]}, "commit": None}
    card = card_of(write_agent(tmp_path / "a.safetensors", provenance=hostile, history="none", best="good"))
    origin = dict(rows_of(card, "Where it comes from"))
    assert origin["experiment"] == "a\\|b ## Scores &lt;script>"
    assert "\n## Scores" not in card
