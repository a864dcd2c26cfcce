"""`rlpto export --card`, with and without the scores of a submission."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from rlpto.agents.card import card_of
from rlpto.agents.policy import pretrained_file
from rlpto.bench.results import Scores, read_rows, write_rows
from rlpto.bench.suite import EXACT, REALISTIC

SRTF = Path(__file__).parents[2] / "submissions" / "srtf"


@pytest.fixture
def submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A submission of the agent `philly` that has the figures of `srtf`; the present folder is tmp_path."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "scored"
    folder.mkdir()
    shutil.copyfile(pretrained_file("philly"), folder / "mine.zip")
    card = yaml.safe_load((SRTF / "card.yaml").read_text()) | {"policies": ["agent:file=mine.zip"]}
    (folder / "card.yaml").write_text(yaml.safe_dump(card | {"training_cpu_s": 321.0}))
    rows = [replace(row, policy="agent:file=mine.zip") for row in read_rows(SRTF / "results.csv")]
    write_rows(rows, folder / "results.csv")
    return folder


def test_a_card_is_written_if_it_is_asked_for(rlpto, tmp_path: Path) -> None:
    for options, expected in (((), False), (("--card",), True)):
        assert rlpto("export", pretrained_file("philly"), "-o", tmp_path / "a.zip", *options).code == 0
        assert (tmp_path / "a.md").is_file() == expected
    assert (tmp_path / "a.md").read_text() == card_of(tmp_path / "a.zip")
    rlpto("export", tmp_path / "a.zip", "-o", tmp_path / "b.md", "--card").assert_refused("b.md: the name of the card")
    assert not (tmp_path / "b.md").exists()
    for name, write in (("notes", lambda path: path.write_text("mine")), ("folder", lambda path: path.mkdir())):
        write(tmp_path / f"{name}.md")
        answer = rlpto("export", tmp_path / "a.zip", "-o", tmp_path / f"{name}.zip", "--card")
        answer.assert_refused(f"{name}.md: there, and no card of an agent")
        assert not (tmp_path / f"{name}.zip").exists()
    assert rlpto("export", tmp_path / "a.zip", "-o", tmp_path / "a.zip", "--card").code == 0, "a card is written again"


def test_a_card_has_the_scores_of_a_submission_of_the_agent(rlpto, submission: Path, tmp_path: Path) -> None:
    answer = rlpto("export", pretrained_file("philly"), "-o", "a.zip", "--card", "--scores", submission)
    assert answer.code == 0, answer
    before, _, shown = (tmp_path / "a.md").read_text().partition("\n## Scores\n")
    assert before == card_of(tmp_path / "a.zip")
    assert "`rlpto bench run agent:file=mine.zip`" in shown
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
    asked = ("-o", "a.zip", "--card", "--scores")
    rlpto("export", other, *asked, submission).assert_refused("scored: a submission of agent:file=mine.zip", str(other))
    rlpto("export", mine, *asked, SRTF).assert_refused("a submission of srtf", "philly.zip")
    rlpto("export", mine, *asked, tmp_path / "none").assert_refused("none/card.yaml")
    rlpto("export", mine, "-o", "a.zip", "--scores", submission).assert_refused("--scores", "expected --card too")
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
