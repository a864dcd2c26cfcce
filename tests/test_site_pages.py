"""The pages of the documentation site that are made of results: what they say holds."""

import re
import sys
from pathlib import Path

import pytest

from rlpto.bench.leaderboard import Entry, entries_of
from rlpto.bench.suite import cases
from rlpto.policies.registry import own_policies

from .test_docs_commands import check_rlpto, commands, words_of

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / ".ci"))

import site_pages as site  # noqa: E402


@pytest.fixture(scope="module")
def entries() -> dict[str, list[Entry]]:
    return entries_of([ROOT / "submissions"])[0]


def test_every_case_is_on_a_page_with_its_ids_scores_and_commands(entries: dict[str, list[Entry]]) -> None:
    pages = site.case_pages(entries)
    for case in cases():
        page = pages[f"cases/{case.id.removesuffix('-exact')}"]
        assert f"`{case.id}`, digest `{case.digest}`" in page
        named = f"rlpto.bench:rlpto/Bench-{case.id}-v1"
        assert f"`{named}`" in page
        assert ("does not count" in page) == (case.jobs in ("llm", "llm_kinds"))
        calls = [words_of(line) for line, _ in commands(page)]
        assert ["rlpto", "bench", "run", "fifo", "--case", case.id] in calls
        for call in calls:
            check_rlpto(call, whole=True)
        scores = [float(score) for _, score in site.scores_of(case, entries)]
        assert scores == sorted(scores, reverse=True)
        assert len(scores) == (len(entries[case.division]) if case.counts else 0)
    assert "| test-006 | 17 |" in pages["cases/microsoft03-0.7"]
    assert "fails every 100 h" in pages["cases/synthetic-failures"]
    assert len(re.findall(r"^\| \[", pages["cases/README"], re.MULTILINE)) == len(pages) - 1 == len(cases()) / 2


def test_gallery_shows_what_a_policy_uses(entries: dict[str, list[Entry]], tmp_path: Path) -> None:
    names = ("fifo", "srtf", "max_throughput", "index", "agent")
    page = site.gallery(entries, tmp_path, {name: own_policies()[name] for name in names})
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| [")]
    uses = {row[0].partition("]")[0][1:]: row[1] for row in rows}
    both = "speeds, lengths"
    assert uses == {"fifo": "neither", "srtf": both, "max_throughput": "speeds", "index": both, "agent": ""}
    assert "(tuned_index)" in rows[names.index("index")][2]
    assert {path.stem for path in (tmp_path / "policies").iterdir()} == set(names) - {"agent"}
    text = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    assert all(f"`{one}`" in text for one in (site.SHOWN, site.WINDOW))
    assert f"first {site.HOURS} hours" in text
