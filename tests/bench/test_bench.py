"""Submissions to rlpto-bench, here and in the repository, are what running them again gives; scores and the board."""

import re
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import yaml

from rlpto import __version__
from rlpto.bench import submissions
from rlpto.bench.leaderboard import entries_of, page, ranks
from rlpto.bench.results import FIGURES, Row, Scores, checked, read_rows, row_of, write_rows
from rlpto.bench.submissions import CARD, RESULTS, Card, board, new_card, read_card, run_all, verify
from rlpto.bench.suite import FIFO_FILE, FOLDER, REALISTIC, find_case
from rlpto.evaluation.runner import Evaluation
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import CheckpointError, ConfigError
from rlpto.io.files import alone_in
from rlpto.io.workers import LocalWorkers
from rlpto.policies import registry
from rlpto.workloads.frozen import read_jobs
from tests.agents.helpers import make_setup, train_small
from tests.slow import few

SMALL = "microsoft04-1.1-exact"
OWN_POLICY = Path(__file__).parents[2] / "examples" / "my_policy.py"


def submit(folder: Path, *policies: str, say: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Run policies on a case."""
    card = Card(name="mine", policies=policies)
    return run_all([(card, folder)], [find_case(SMALL)], LocalWorkers(), say, progress=False)[0]


@pytest.fixture(scope="module")
def submission(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A submission of two policies on one case."""
    folder = tmp_path_factory.mktemp("submissions") / "mine"
    submit(folder, "srtf", "srtf:label=again")
    return folder


@pytest.fixture
def copied(submission: Path, tmp_path: Path) -> Path:
    """A copy of it, to be spoilt."""
    for name in (CARD, RESULTS):
        (tmp_path / name).write_bytes((submission / name).read_bytes())
    return tmp_path


def test_fifo_scores_zero_and_the_bound_a_hundred(submission: Path) -> None:
    fifo = [row for row in read_rows(FIFO_FILE) if row.case == SMALL]
    assert Scores(fifo, "exact").by_case() == {SMALL: 0.0}
    bound = FIGURES.index("bound")
    best = [replace(row, figures=(row.figures[bound], *row.figures[1:])) for row in fifo]
    assert Scores(best, "exact").by_case()[SMALL] == pytest.approx(100)
    mine = Scores(read_rows(submission / RESULTS), "exact")
    score, low, high = mine.interval
    assert 0 < low < score < high < 100
    assert SMALL not in mine.missing
    assert "kinds-exact" in mine.missing
    assert "llm-exact" not in mine.missing, "it came after the first results, and does not count for the score"


def _with(row: Row, at: int, value: float) -> Row:
    """The row with another figure."""
    return replace(row, figures=(*row.figures[:at], value, *row.figures[at + 1 :]))


def test_a_cost_is_scored_by_that_of_fifo_in_each_window() -> None:
    case = find_case("microsoft03-rented")
    fifo = [row for row in read_rows(FIFO_FILE) if row.case == case.id]
    cost, bound = (np.array([row.figures[FIGURES.index(name)] for row in fifo]) for name in ("reward", "bound"))
    cost, at = -cost, FIGURES.index("reward")
    assert (cost > bound).all()

    def score(costs: FloatArray) -> float:
        rows = [_with(row, at, -value) for row, value in zip(fifo, costs.tolist(), strict=True)]
        assert checked(rows, ["fifo"]) == (rows, [])
        return Scores(rows, "rented").by_case()[case.id]

    assert score(cost) == 0
    assert score(bound) == pytest.approx(100)
    assert score((cost + bound) / 2) == pytest.approx(50)
    first = np.where(np.arange(len(cost)) == 0, bound, cost)
    assert score(first) == pytest.approx(100 * (1 - bound[0] / cost[0]) / (1 - bound / cost).sum())
    below = [_with(row, at, -0.9 * row.figures[FIGURES.index("bound")]) for row in fifo]
    assert "has figures that no run can have" in checked(below, ["fifo"])[1][0]


@pytest.mark.parametrize(
    ("policies", "several"),
    [
        (("index@average", "index@average:factor=3"), True),
        (("index@average", "index"), True),
        (("index@agent:file=a.safetensors", "index@agent:file=b.safetensors"), False),
        (("agent:file=a.safetensors@average", "agent:file=b.safetensors@average"), False),
    ],
)
def test_only_seeds_of_a_training_share_a_card(policies: tuple[str, ...], several: bool) -> None:
    with pytest.raises(ConfigError, match="submit other policies separately") if several else nullcontext():
        new_card("mine", policies)


@pytest.mark.parametrize(
    ("spec", "name", "said"),
    [
        ("index@average", "microsoft04-0.9", "policy index@average: no nodes are rented in these cases"),
        ("index@never", "microsoft04-rented", "no provisioner 'never'"),
    ],
)
def test_a_provisioner_that_does_not_suit_a_case_is_refused_first(
    tmp_path: Path, spec: str, name: str, said: str
) -> None:
    folder = tmp_path / "mine"
    with pytest.raises(ConfigError, match=re.escape(said)):
        run_all(
            [(Card(name="mine", policies=(spec,)), folder)], [find_case(name)], LocalWorkers(), print, progress=False
        )
    assert not folder.exists()


def test_the_whole_board_can_run_on_all_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the first cell. Policies that name a provisioner run where nodes are rented, and the others everywhere."""
    asked = list[tuple[str, str]]()

    def none(evaluations: list[Evaluation], *_: object) -> tuple[()]:
        asked.extend((cell.policy, one.out.name) for one in evaluations for cell in one.cells)
        return ()

    monkeypatch.setattr(submissions, "evaluate_all", none)
    cards = board(Path(__file__).parents[2] / "submissions", tmp_path)
    chosen = [find_case(name) for name in ("microsoft04-0.9", "microsoft04-rented")]
    run_all(cards, chosen, LocalWorkers(), print, progress=False)
    assert {folder.rpartition("-")[0] for policy, folder in asked if "@" in policy} == {"microsoft04-rented"}
    assert {policy for policy, folder in asked if folder.startswith("microsoft04-0.9")} >= {"fifo", "index"}


def test_a_forecast_rents_nodes_in_a_submission(tmp_path: Path) -> None:
    """On a case that ships the forecast of its demand."""
    card = Card(name="mine", policies=("fifo@forecast:level=0.9",))
    case = find_case("microsoft03-rented")
    rows = run_all([(card, tmp_path)], [case], LocalWorkers(), print, progress=False)[0]
    assert checked(rows, card.policies) == (rows, [])
    waited = {row.window: row.figures[0] for row in read_rows(FIFO_FILE) if row.case == case.id}
    assert np.mean([row.figures[0] for row in rows]) < np.mean(list(waited.values())), "jobs wait less for nodes"
    assert list(verify(tmp_path, share=0.1)) == []


def test_a_submission_that_is_right_is_verified_and_can_be_continued(submission: Path) -> None:
    assert list(verify(submission, share=0.2)) == []
    before = (submission / RESULTS).read_bytes()
    submit(submission, "srtf", "srtf:label=again")
    assert (submission / RESULTS).read_bytes() == before, "nothing ran again, CPU times included"
    with pytest.raises(ConfigError, match="expected another folder"):
        submit(submission, "las")
    with alone_in(submission, "busy"), pytest.raises(CheckpointError, match="another process runs this submission"):
        submit(submission, "srtf", "srtf:label=again")


def test_results_of_two_versions_of_rlpto_are_not_mixed(copied: Path) -> None:
    rows = read_rows(copied / RESULTS)
    write_rows([*rows, replace(rows[0], case="microsoft04-0.7-exact")], copied / RESULTS)
    card = read_card(copied).model_dump(mode="json") | {"rlpto": "0.0.1"}
    (copied / CARD).write_text(yaml.safe_dump(card))
    again = submit(copied, "srtf", "srtf:label=again")
    assert {row.case for row in again} == {SMALL}
    assert [row.figures for row in again] == [row.figures for row in rows]
    assert read_card(copied).rlpto == __version__


def test_a_submission_that_is_refused_keeps_its_results_and_its_code(copied: Path, tmp_path: Path) -> None:
    mine, folder = tmp_path / "mine.py", tmp_path / "submission"
    folder.mkdir()
    card = read_card(copied).model_copy(update={"policies": ("mine.py:MyPolicy",)})
    (folder / CARD).write_text(yaml.safe_dump(card.model_dump(mode="json")))
    (folder / RESULTS).write_bytes((copied / RESULTS).read_bytes())
    (folder / "mine.py").write_text(OWN_POLICY.read_text())
    mine.write_text(f"{OWN_POLICY.read_text()}# edited")
    with pytest.raises(ConfigError, match="expected another folder"):
        submit(folder, f"{mine}:MyPolicy:label=x")
    assert (folder / RESULTS).read_bytes() == (copied / RESULTS).read_bytes()
    assert (folder / "mine.py").read_text() == OWN_POLICY.read_text()


def test_everything_that_is_wrong_is_named_and_the_rest_checked(copied: Path) -> None:
    rows = read_rows(copied / RESULTS)
    changed = replace(rows[0], figures=(float(np.nextafter(rows[0].figures[0], 0.0)), *rows[0].figures[1:]))
    foreign = replace(rows[1], case="none")
    stale = [replace(row, case="kinds-exact", digest="0" * 16) for row in rows[:1]]
    write_rows([changed, foreign, *stale, *rows[2:]], copied / RESULTS)
    said = list(verify(copied, share=1.0))
    assert len([line for line in said if "running again gives" in line]) == 1
    for expected in ("case none: no such case", f"case {SMALL}: ", "is missing", "digest 0000000000000000, expected"):
        assert any(expected in line for line in said), (expected, said)


def test_a_policy_that_raises_is_named(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of mine")

    policy = type(Experiment(find_case(SMALL).config()).policy("srtf"))
    monkeypatch.setattr(policy, "__call__", broken)
    said = list(verify(copied, share=1.0))
    assert said
    assert all("the policy raised ZeroDivisionError: of mine" in line for line in said)


@pytest.mark.slow
def test_the_example_of_a_policy_beats_fifo_by_far() -> None:
    """In one window; the whole case scores 33.8, as README says."""
    case = find_case("microsoft04-0.9")
    experiment = Experiment(case.config())
    seed, window = experiment.config.seed, "test-000"
    policy = experiment.policy(f"{OWN_POLICY}:MyPolicy")
    found = row_of(case, policy.name, experiment.run_policy(policy, window, seed, sealed=True))
    fifo = next(row for row in read_rows(FIFO_FILE) if (row.case, row.window) == (case.id, window))
    assert found.figures[0] < 0.8 * fifo.figures[0]


@pytest.mark.slow
def test_code_is_copied_into_a_submission_and_an_edit_drops_its_results(tmp_path: Path) -> None:
    mine, folder = tmp_path / "mine.py", tmp_path / "submission"
    mine.write_text(OWN_POLICY.read_text())
    before = submit(folder, f"{mine}:MyPolicy")
    assert (folder / "mine.py").read_text() == mine.read_text()
    assert list(verify(folder, share=0.1)) == []
    mine.write_text(OWN_POLICY.read_text().replace("free -= 1", "free -= 2"))
    again = submit(folder, f"{mine}:MyPolicy")
    assert [row.place for row in again] == [row.place for row in before]
    assert [row.figures for row in again] != [row.figures for row in before]
    assert (folder / "mine.py").read_text() == mine.read_text()


@pytest.mark.slow
def test_an_edit_of_a_policys_module_or_of_a_plug_in_drops_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, folder, said = tmp_path / "plugged_in.py", tmp_path / "submission", list[str]()
    mine = tmp_path / "mine.py"
    package.write_text(OWN_POLICY.read_text())
    mine.write_text("from plugged_in import MyPolicy as Base\n\n\nclass MyPolicy(Base):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    point = metadata.EntryPoint("mine", "plugged_in:MyPolicy", "rlpto.policies")
    monkeypatch.setattr(registry, "_plugins", lambda: {"mine": point})

    for number, spec in enumerate((f"{mine}:MyPolicy", "mine")):
        into = folder / str(number)
        package.write_text(OWN_POLICY.read_text())
        before = submit(into, spec, say=said.append)
        assert submit(into, spec, say=said.append) == before
        assert "changed" not in "".join(said)
        package.write_text(OWN_POLICY.read_text().replace("free -= 1", "free -= 2 - 0"))
        sys.modules.pop("plugged_in", None)
        again = submit(into, spec, say=said.append)
        assert [row.figures for row in again] != [row.figures for row in before]
        assert sum("has changed: results of the version before are dropped" in line for line in said) == 1
        said.clear()
        sys.modules.pop("plugged_in", None)
    assert (folder / "0" / "plugged_in.py").read_text() == package.read_text()


def test_broken_results_are_refused_with_their_line(copied: Path) -> None:
    header = (copied / RESULTS).read_text().splitlines()[0]
    for line in ("x,y", "a,b,c,d,nan,2,3,4,5,6,7,8,9"):
        (copied / RESULTS).write_text(f"{header}\n{line}\n")
        with pytest.raises(CheckpointError, match=":2: expected"):
            list(verify(copied))
    (copied / RESULTS).write_text(f"{header}\n")
    assert list(verify(copied)) == ["no results"]
    (copied / RESULTS).write_text("a,b\n")
    with pytest.raises(CheckpointError, match=":1: header a,b, expected case,digest"):
        list(verify(copied))


@pytest.mark.parametrize(
    ("figure", "value"),
    [("bound", 1.0), ("jct", 1.0), ("p95", np.nan), ("gpu_hours", 0.0), ("rescales", -1.0), ("cpu_ms", -1.0)],
)
def test_figures_that_no_run_can_have_are_refused(copied: Path, figure: str, value: float) -> None:
    first, *rest = read_rows(copied / RESULTS)
    figures = dict(zip(FIGURES, first.figures, strict=True)) | {figure: value}
    cpu_ms = figures.pop("cpu_ms", first.cpu_ms)
    write_rows([replace(first, figures=tuple(figures.values()), cpu_ms=cpu_ms), *rest], copied / RESULTS)
    assert [line for line in verify(copied, share=0.0) if f"{first.window} has figures that no run can have" in line]
    assert "has figures that no run can have" in entries_of([copied])[1][0]


def test_a_name_is_on_the_board_once_and_a_card_holds_no_markdown(submission: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        shutil.copytree(submission, tmp_path / name, ignore=shutil.ignore_patterns("cells"))
    divisions, left_out = entries_of([tmp_path])
    assert [entry.card.name for entry in divisions["exact"]] == ["mine"]
    assert left_out == [f"mine: not ranked: {tmp_path / 'second'}: another submission has this name"]
    card = tmp_path / "first" / CARD
    card.write_text(card.read_text().replace("about: ''", "about: '![x](https://example.org/x.png)'"))
    with pytest.raises(ConfigError, match=r"card.yaml.*about: expected a line of plain text"):
        read_card(card.parent)


def test_a_board_has_every_name_once(submission: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        shutil.copytree(submission, tmp_path / name, ignore=shutil.ignore_patterns("cells"))
    with pytest.raises(ConfigError, match=r"second/card\.yaml: another submission has this name, mine"):
        board(tmp_path, tmp_path / "runs")


def test_what_is_wrong_in_a_card_is_said_once_with_its_place(tmp_path: Path) -> None:
    (tmp_path / CARD).write_text("name: mine\npolicies: ['fifo>600']\n")
    with pytest.raises(ConfigError, match=r"card\.yaml:2: policies: policy switch '600': expected SECONDS:POLICY"):
        read_card(tmp_path)
    for name, policies in (("a b", ["fifo"]), ("mine", ["fifo", "fifo"])):
        with pytest.raises(ConfigError, match=r"^(name|policies): (?!name|policies)"):
            new_card(name, policies)


@pytest.mark.slow
def test_files_of_a_policy_travel_with_it(tmp_path: Path) -> None:
    weights = tmp_path / "mine.yaml"
    weights.write_bytes((FOLDER.parent / "configs" / "tuned" / "quickstart.yaml").read_bytes())
    folder = tmp_path / "submission"
    assert {row.policy for row in submit(folder, f"index:weights={weights}")} == {"index:weights=mine.yaml"}
    weights.unlink()
    assert list(verify(folder, share=0.1)) == []
    (folder / CARD).write_text((folder / CARD).read_text().replace("=mine.yaml", "=../mine.yaml"))
    (folder / RESULTS).write_text((folder / RESULTS).read_text().replace("=mine.yaml", "=../mine.yaml"))
    assert all("expected one in the folder of the submission" in line for line in verify(folder, share=0.1))
    train_small(tmp_path / "run", make_setup())
    with pytest.raises(ConfigError, match="expected a file: `rlpto export"):
        submit(tmp_path / "other", f"agent:run={tmp_path / 'run'}")


def test_the_table_ranks_what_is_complete_and_says_what_is_not(submission: Path, tmp_path: Path) -> None:
    whole = tmp_path / "fifo"
    whole.mkdir()
    write_rows(read_rows(FIFO_FILE), whole / RESULTS)
    (whole / CARD).write_text("name: fifo\npolicies: [fifo]\n")
    part = tmp_path / "part"
    part.mkdir()
    for name in (CARD, RESULTS):
        (part / name).write_bytes((submission / name).read_bytes())
    divisions, left_out = entries_of([tmp_path])
    assert [entry.card.name for entry in divisions["realistic"]] == ["fifo"]
    assert [(entry.card.name, entry.ranked) for entry in divisions["exact"]] == [("fifo", True), ("mine", False)]
    assert left_out == []
    text = page(divisions)
    assert "| fifo | 0.0 [0.0, 0.0] |" in text
    assert "| mine | " in text.partition("oracle")[2], "what lacks cases has its scores by case"
    results = (part / RESULTS).read_text().splitlines()
    (part / RESULTS).write_text("\n".join(results[:-1]) + "\n")
    assert "mine: not ranked: case" in entries_of([part])[1][0]
    with pytest.raises(ConfigError, match="no submissions"):
        entries_of([tmp_path / "nowhere"])


REPOSITORY = Path(__file__).resolve().parents[2]
SUBMISSIONS = REPOSITORY / "submissions"
jobs_of = cache(read_jobs)


def few_jobs(rows: list[Row]) -> int:
    """Of many seeds the one by which `verify` draws the cell with the fewest jobs."""

    def jobs(seed: int) -> int:
        row = rows[np.random.default_rng(seed).choice(len(rows), 1)[0]]
        return len(jobs_of(FOLDER / "jobs" / f"{find_case(row.case).jobs}.parquet").windows[row.window])

    return min(range(100), key=jobs)


@pytest.mark.parametrize(
    "name", few(sorted(path.parent.name for path in SUBMISSIONS.glob(f"*/{CARD}")), "index", "agent_microsoft")
)
def test_a_submission_comes_out_the_same_again(name: str) -> None:
    rows = read_rows(SUBMISSIONS / name / RESULTS)
    wrong = list(verify(SUBMISSIONS / name, 1 / len(rows), few_jobs(rows)))
    assert wrong == [], "one cell; `rlpto bench verify` takes all"


def test_the_leaderboard_is_that_of_the_submissions() -> None:
    divisions, left_out = entries_of([SUBMISSIONS])
    assert left_out == []
    assert page(divisions) == (REPOSITORY / "docs" / "leaderboard.md").read_text(encoding="utf-8")


def test_differences_are_paired_by_window_in_any_order_of_rows() -> None:
    rows = read_rows(SUBMISSIONS / "index" / RESULTS)
    first, second = Scores(rows, REALISTIC), Scores(rows[::-1], REALISTIC)
    np.testing.assert_array_equal(first.drawn, second.drawn)


def test_policies_that_cannot_be_distinguished_share_their_ranks() -> None:
    index, fifo = entries_of([SUBMISSIONS / name for name in ("index", "fifo")])[0][REALISTIC]
    assert ranks([index, fifo]) == ["1", "2"]
    assert ranks([index, index, fifo]) == ["1 to 2", "1 to 2", "3"]
