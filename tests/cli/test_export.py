"""`rlpto export --card`, with and without the scores of a submission."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from gymnasium import spaces

from rlpto import __version__
from rlpto.agents.archive import AGENT, CHECKPOINT, NODES
from rlpto.agents.card import card_of
from rlpto.agents.nodes_agent import nodes_meaning
from rlpto.agents.policy import pretrained_file
from rlpto.agents.ppo import NodesPolicy
from rlpto.agents.trained import weight_arrays
from rlpto.bench.results import Scores, read_rows, write_rows
from rlpto.bench.suite import EXACT, REALISTIC
from rlpto.io.archive import read_archive, write_archive

SRTF = Path(__file__).parents[2] / "submissions" / "srtf"


@pytest.fixture
def submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A submission of the agent `philly` that has the figures of `srtf`; the present folder is tmp_path."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "scored"
    folder.mkdir()
    shutil.copyfile(pretrained_file("philly"), folder / "mine.safetensors")
    card = yaml.safe_load((SRTF / "card.yaml").read_text()) | {"policies": ["agent:file=mine.safetensors"]}
    (folder / "card.yaml").write_text(yaml.safe_dump(card | {"training_cpu_s": 321.0}))
    rows = [replace(row, policy="agent:file=mine.safetensors") for row in read_rows(SRTF / "results.csv")]
    write_rows(rows, folder / "results.csv")
    return folder


def test_a_card_is_written_if_it_is_asked_for(rlpto, tmp_path: Path) -> None:
    for options, expected in (((), False), (("--card",), True)):
        assert rlpto("export", pretrained_file("philly"), "-o", tmp_path / "a.safetensors", *options).code == 0
        assert (tmp_path / "a.md").is_file() == expected
    assert (tmp_path / "a.md").read_text() == card_of(tmp_path / "a.safetensors")
    rlpto("export", tmp_path / "a.safetensors", "-o", tmp_path / "b.md", "--card").assert_refused(
        "b.md: the name of the card"
    )
    assert not (tmp_path / "b.md").exists()
    rlpto("export", tmp_path / "a.safetensors", "-o", "", "--card").assert_refused("expected the name of a file")
    shutil.copyfile(tmp_path / "a.safetensors", tmp_path / "last.safetensors")
    shutil.copyfile(tmp_path / "a.safetensors", tmp_path / "best.safetensors")
    for name in ("last.safetensors", "best.safetensors"):
        rlpto("export", tmp_path, "-o", tmp_path / name).assert_refused("a checkpoint of a run, expected")
    for name, write in (("notes", lambda path: path.write_text("mine")), ("folder", lambda path: path.mkdir())):
        write(tmp_path / f"{name}.md")
        answer = rlpto("export", tmp_path / "a.safetensors", "-o", tmp_path / f"{name}.safetensors", "--card")
        answer.assert_refused(f"{name}.md: there, and no card of an agent")
        assert not (tmp_path / f"{name}.safetensors").exists()
    assert rlpto("export", tmp_path / "a.safetensors", "-o", tmp_path / "a.safetensors", "--card").code == 0, (
        "a card is written again"
    )


def test_a_card_has_the_scores_of_a_submission_of_the_agent(rlpto, submission: Path, tmp_path: Path) -> None:
    answer = rlpto("export", pretrained_file("philly"), "-o", "a.safetensors", "--card", "--scores", submission)
    assert answer.code == 0, answer
    before, _, shown = (tmp_path / "a.md").read_text().partition("\n## Scores\n")
    assert before == card_of(tmp_path / "a.safetensors")
    assert "`rlpto bench run agent:file=mine.safetensors`" in shown
    assert "Training took 321 CPU-seconds." in shown
    rows = read_rows(submission / "results.csv")
    for division in (REALISTIC, EXACT):
        scores = Scores(rows, division)
        assert scores.cases
        assert "| **{}** | {:.1f} [{:.1f}, {:.1f}] |".format(division, *scores.interval) in shown
        for case, score in scores.by_case().items():
            assert f"| {case} | {score:.1f} |" in shown


def test_scores_of_others_and_broken_ones_are_refused_and_few_are_shown(
    rlpto, submission: Path, tmp_path: Path
) -> None:
    mine, other = pretrained_file("philly"), pretrained_file("pollux")
    asked = ("-o", "a.safetensors", "--card", "--scores")
    rlpto("export", other, *asked, submission).assert_refused(
        "scored: a submission of agent:file=mine.safetensors", str(other)
    )
    rlpto("export", mine, *asked, SRTF).assert_refused("a submission of srtf", "philly.safetensors")
    rlpto("export", mine, *asked, tmp_path / "none").assert_refused("none/card.yaml")
    rlpto("export", mine, "-o", "a.safetensors", "--scores", submission).assert_refused(
        "--scores", "expected --card too"
    )
    rows = read_rows(submission / "results.csv")
    for wrong, said in (([], "scored: no results"), (rows[1:], "is missing")):
        write_rows(wrong, submission / "results.csv")
        rlpto("export", mine, *asked, submission).assert_refused(said)
    assert not list(tmp_path.glob("a.*"))
    one_case = [row for row in rows if row.case == "microsoft04-0.9"]
    write_rows(one_case, submission / "results.csv")
    assert rlpto("export", mine, *asked, submission).code == 0
    shown = (tmp_path / "a.md").read_text().partition("\n## Scores\n")[2]
    assert "| microsoft04-0.9 | " in shown
    assert "**" not in shown, "a division that lacks cases has scores by case alone"


@pytest.fixture
def trained_nodes_file(tmp_path: Path) -> Path:
    """A checkpoint of an agent that rents nodes, with weights of zero."""
    network = NodesPolicy(
        spaces.Dict({"nodes": spaces.Box(-1.0, 1.0, (3,))}), spaces.Box(-1.0, 1.0, (1,)), lambda _: 0.0, width=8
    )
    manifest = {
        "format": CHECKPOINT,
        "rlpto": __version__,
        "meaning": nodes_meaning(),
        "network": {"width": 8},
        NODES: {"heuristic": "spare:gpus=4", "features": 3, "gpus": [4.0], "boot": [300.0]},
    }
    write_archive(tmp_path / "last.safetensors", manifest, weight_arrays(network), "one")
    return tmp_path / "last.safetensors"


def test_an_agent_that_rents_nodes_is_exported_with_its_card(rlpto, tmp_path: Path, trained_nodes_file: Path) -> None:
    out = tmp_path / "nodes.safetensors"
    assert rlpto("export", trained_nodes_file, "-o", out, "--card").code == 0
    assert NODES in read_archive(out, (AGENT,)).manifest
    assert "how many nodes are rented" in (tmp_path / "nodes.md").read_text()
