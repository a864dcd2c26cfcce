"""The runner of studies, and the rows of studies.yaml."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from rlpto.io.errors import ConfigError
from rlpto.provisioning.demand import Demand

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))

import _studies  # noqa: E402
import _study_nodes as rented  # noqa: E402
import _study_ray_policies as real  # noqa: E402
import study  # noqa: E402

STUDIES = study.load_studies()


def page_lines(name: str) -> list[str]:
    """What stands between a study's marks on its page."""
    page = (study.PAGES / STUDIES[name].page).read_text(encoding="utf-8")
    return page.partition(f"<!-- begin: {name} -->\n")[2].partition(f"\n<!-- end: {name} -->")[0].splitlines()


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_a_function_and_a_page_with_its_marks_and_its_command(name: str) -> None:
    assert all(map(callable, study.functions_of(name, STUDIES[name]).values()))
    assert page_lines(name)[0].startswith(f"`python benchmarks/study.py {name}` wrote what follows")


@pytest.mark.parametrize("name", [name for name, row in STUDIES.items() if row.claims and row.listed])
def test_claims_on_pages_are_those_of_the_rows(name: str) -> None:
    """Figures from the page, as if they were kept: the table of claims comes out equal."""
    lines = page_lines(name)
    first = next(i for i, line in enumerate(lines) if line.startswith("| behaviour")) + 2
    shown = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[first : lines.index("", first)]]
    both = {cells[0].removesuffix("least") for cells in shown if cells[0].endswith(", at least")}
    names = [next((one.removesuffix(", at ") for one in both if cells[0].startswith(one)), cells[0]) for cells in shown]
    figures = dict.fromkeys(names, 0.0)
    claims = study.claims_of(STUDIES[name], {"figures": figures, "limits": {}})
    assert [check.name for check, _ in claims] == [cells[0] for cells in shown]
    for (check, missed), (_, measured, claimed, verdict) in zip(claims, shown, strict=True):
        assert measured.partition(" ")[2] == check.unit
        assert claimed == study.claim_row(check, missed)["claimed"] or check.name.startswith("A1")
        assert (verdict == "**missed**") == missed


def test_a_table_takes_its_place_in_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = "<!-- begin: some -->", "<!-- end: some -->"
    page.write_text(f"Before.\n{begin}\nold\n{end}\nAfter.\n")
    study.write_block(page, "some", "\n".join(study.table([{"a": 0.123456, "b": "x"}, {"a": 7}])))
    assert page.read_text() == (
        f"Before.\n{begin}\n| a | b |\n| --- | --- |\n| 0.1235 | x |\n| 7 |  |\n{end}\nAfter.\n"
    )
    page.write_text("no marks")
    with pytest.raises(ConfigError, match="expected the marks"):
        study.write_block(page, "some", "text")
    assert page.read_text() == "no marks"
    study.write_block(tmp_path / "new.md", "some", "text")
    assert "text\n" in (tmp_path / "new.md").read_text()


def test_a_measurement_is_kept_until_sources_or_settings_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def rows(plan: _studies.Plan) -> _studies.Part:
        calls.append(plan.windows)
        return _studies.Part({"jobs": 3.0, "time": 9.0}, [{"windows": plan.windows}])

    claims = [{"figure": "jobs", "least": 4, "most": 5}, {"figure": "t*", "unit": "s", "most": 5, "missed": True}]
    row = study.Study.model_validate(
        {"tables": {"Rows of {plan.windows}": "rows"}, "page": "page.md", "claims": claims, "settings": {"windows": 3}}
    )
    monkeypatch.setitem(sys.modules, "_study_some", SimpleNamespace(rows=rows))
    sources = ["digest"]
    monkeypatch.setattr(study, "sources_digest", lambda: sources[0])

    def measured(*settings: str, fresh: bool = False) -> dict:
        return study.measured("some", row, study.plan_of(row, settings, tmp_path), fresh=fresh)

    found = measured()
    assert measured() == found
    assert measured("windows=5")["tables"] == {"Rows of 5": [{"windows": 5}]}
    measured()
    measured(fresh=True)
    sources[0] = "another"
    measured()
    monkeypatch.setenv("RLPTO_DATA", str(tmp_path))
    measured()
    assert calls == [3, 5, 3, 3, 3, 3]
    text = study.block("some", row, found)
    assert text.index("| time | 9 s | at most 5 | **missed** |") < text.index(
        "| jobs, at least | 3 | at least 4 | **no** |"
    )
    assert "| jobs, at most | 3 | at most 5 | yes |" in text
    assert "Rows of 3:\n\n| windows |\n| --- |\n| 3 |" in text
    with pytest.raises(ConfigError, match="no claim is about the figure 'loss'"):
        study.claims_of(row, {"figures": {"loss": 1.0}, "limits": {}})


def test_a_study_without_its_data_leaves_its_page_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "traces" / "pollux").mkdir(parents=True)
    monkeypatch.setenv("RLPTO_DATA", str(tmp_path))
    words = ["study.py", "stopping", "generated", "--folder", f"{tmp_path}/kept", "--pages", f"{tmp_path}/pages"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        study.main()
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"stopping skipped: no real data at {tmp_path}/profiles (set RLPTO_DATA)" in said
    assert f"generated skipped: no real data at {tmp_path}/traces/philly.csv.gz (set RLPTO_DATA)" in said
    assert [path.name for path in tmp_path.iterdir()] == ["traces"]


def test_a_wrong_row_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "studies.yaml"
    path.write_text(study.STUDIES.read_text().replace("  page: results.md", "  pgae: results.md", 1))
    with pytest.raises(ConfigError, match=r"studies\.yaml:\d+: agents\.pgae: "):
        study.load_studies(path)


def test_ratios_of_mean_jct_over_windows_and_over_jobs() -> None:
    windows = [np.array([10.0, 30.0]), np.array([20.0, 60.0]), np.array([5.0, 15.0])]
    halved = [window / 2 for window in windows]
    mine, its = np.concatenate(halved), np.concatenate(windows)
    for ratio in (real.windows_ratio(halved, windows), _studies.ratio_of_means(mine, its)):
        assert (ratio.estimate, ratio.low, ratio.high) == pytest.approx((0.5, 0.5, 0.5))
    mixed = [windows[0] / 2, windows[1], windows[2]]
    over_windows, over_jobs = real.windows_ratio(mixed, windows), _studies.ratio_of_means(np.concatenate(mixed), its)
    assert over_windows.estimate == pytest.approx(0.5 ** (1 / 3))
    assert over_windows.high > 1
    assert over_jobs.estimate == pytest.approx(120 / 140)
    assert over_jobs.low < 120 / 140 < over_jobs.high <= 1


def test_known_arrivals_are_the_gpus_of_the_next_boot_time() -> None:
    asked = np.array([[[1.0, 4.0], [0.0, 0.0], [2.0, 3.0]]])
    known = rented.known_arrivals(Demand(asked, asked[:, :0]), 120.0)
    assert known[:, 0, 0].tolist() == [4.0, 3.0, 3.0, 0.0]
