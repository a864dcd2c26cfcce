"""The pages of the documentation site that are made of results: what they say holds."""

import html
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlpto.bench.leaderboard import Entry, entries_of
from rlpto.bench.suite import cases
from rlpto.policies.registry import own_policies

from .service.web.test_browser import CHROMIUM, FLAGS, needs_browser
from .test_docs_commands import check_rlpto, commands, words_of

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / ".ci"))

import site_pages as site  # noqa: E402


@pytest.fixture(scope="module")
def entries() -> dict[str, list[Entry]]:
    return entries_of([ROOT / "submissions"])[0]


@pytest.mark.slow
def test_every_case_is_on_a_page_with_its_ids_scores_and_commands(entries: dict[str, list[Entry]]) -> None:
    pages = site.case_pages(entries)
    for case in cases():
        page = pages[f"cases/{case.name}"]
        assert f"`{case.id}`, digest `{case.digest}`" in page
        named = f"rlpto.bench:rlpto/Bench-{case.id}-v1"
        assert (f"`{named}`" in page) == case.trains
        assert ("does not count" in page) == (case.jobs in ("llm", "llm_kinds"))
        calls = [words_of(line) for line, _ in commands(page)]
        assert ["rlpto", "bench", "run", "fifo", "--case", case.id] in calls
        for call in calls:
            check_rlpto(call, whole=True)
        scores = [float(score) for _, score in site.scores_of(case, entries)]
        assert scores == sorted(scores, reverse=True)
        ran = [entry for entry in entries[case.division] if case.id in entry.scores.cases]
        assert len(scores) == len(ran)
        assert bool(ran) == case.counts
    assert "| test-006 | 17 |" in pages["cases/microsoft03-0.7"]
    assert "fails every 100 h" in pages["cases/synthetic-failures"]
    assert (
        len(re.findall(r"^\| \[", pages["cases/README"], re.MULTILINE))
        == len(pages) - 1
        == len({case.name for case in cases()})
    )


@pytest.mark.slow
def test_gallery_shows_what_a_policy_uses(tmp_path: Path) -> None:
    names, said = ("fifo", "srtf", "max_throughput", "agent"), list[str]()
    page = site.gallery({name: own_policies()[name] for name in names}, tmp_path, said.append)
    sections = dict(part.split("\n", 1) for part in page.split("\n### ")[1:])
    uses = {name: re.findall("^Uses: (.*?)\\. Mean JCT", text, re.MULTILINE) for name, text in sections.items()}
    assert uses == {"fifo": ["neither"], "srtf": ["speeds, lengths"], "max_throughput": ["speeds"], "agent": []}
    assert {path.stem for path in (tmp_path / "policies").iterdir()} == set(names) - {"agent"}
    assert [text.rpartition(" ")[2] for text in said] == ["fifo", "srtf", "max_throughput"]


def test_gallery_without_pictures_runs_nothing() -> None:
    page = site.gallery(own_policies(), None, lambda what: pytest.fail(f"runs the {what}"))
    assert re.findall("^### (.*)", page, re.MULTILINE) == list(own_policies())
    assert ".png" not in page


def test_page_of_policies_lists_them_best_first(entries: dict[str, list[Entry]]) -> None:
    """After a change of policies or submissions: copy the table of this failure."""
    wanted = site.policy_table(entries, own_policies())
    assert wanted in (ROOT / "docs" / "policies.md").read_text(encoding="utf-8"), wanted
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in wanted.splitlines() if line.startswith("| `")]
    assert all(all(row) for row in rows)
    scores = [float(row[2]) for row in rows if row[2] != "no entry"]
    assert scores == sorted(scores, reverse=True)
    assert rows[len(scores) :] == [row for row in rows if row[2] == "no entry"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, without pictures of policies."""
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("zensical is not installed: pip install -c constraints.txt -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site") / "rlpto"
    left = shutil.ignore_patterns(".git", ".venv", ".cache", "__pycache__", "build", "runs", "site", "tests")
    shutil.copytree(ROOT, folder, symlinks=True, ignore=left)
    environment = os.environ | {"PYTHONPATH": str(folder)}
    for command in ([".ci/docs.py", "--no-pictures"], ["-m", "zensical", "build", "--strict"]):
        done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def text_of(page: Path) -> str:
    return html.unescape(re.sub("<[^>]+>", "", page.read_text(encoding="utf-8")))


@pytest.mark.slow
def test_links_are_called_by_the_titles_of_pages(built: Path) -> None:
    texts = re.findall(r"<a [^>]*>([^<]+)</a>", (built / "simulator.html").read_text(encoding="utf-8"))
    assert "Policies" in texts
    assert not [text for text in texts if text.endswith(".md")]


@pytest.mark.slow
def test_api_shows_each_parameter_on_a_line_and_in_a_list(built: Path) -> None:
    page = built / "api" / "experiments.environments.html"
    signature = text_of(page).partition("vector_env(\n")[2].partition(") ->")[0]
    assert [line.split(":")[0].strip() for line in signature.splitlines()][:2] == ["num_envs", "config"]
    assert max(map(len, signature.splitlines())) <= 80
    items = re.findall(r"<li>\s*(?:<p>)?<code>([\w, ]+)</code>: ", page.read_text(encoding="utf-8"))
    assert {"config", "split", "seeds", "render_mode", "autoreset_mode"} <= set(", ".join(items).split(", "))


@pytest.mark.slow
def test_notebooks_are_pages_with_their_pictures(built: Path) -> None:
    page = (built / "repository" / "notebooks" / "planner.html").read_text(encoding="utf-8")
    assert "mean job completion time" in page
    pictures = re.findall(r'<img [^>]*src="([^"]+)"', page)
    assert len(pictures) >= 3
    assert all((built / "repository" / "notebooks" / name).is_file() for name in pictures)


@pytest.mark.slow
@needs_browser
def test_opened_as_files_pages_fit_and_can_be_searched(built: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page, asked = browser.new_page(viewport={"width": 400, "height": 900}), list[str]()
        page.on("request", lambda request: asked.append(request.url))
        for name in ("index", "policies", "leaderboard", "ray-policies", "api/experiments.environments"):
            page.goto((built / f"{name}.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= 400
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto((built / "index.html").as_uri())
        page.wait_for_load_state("networkidle")
        page.keyboard.press("Control+k")
        page.get_by_role("searchbox").or_(page.get_by_placeholder("Search")).first.press_sequentially(
            "planner", delay=50
        )
        page.get_by_text("Planning: a policy that looks ahead").first.click()
        page.wait_for_url("**/planning.html**")
        browser.close()
    assert not [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]
