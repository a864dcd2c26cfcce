"""The report is one file that says everything and needs nothing."""

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from rlpto.evaluation.metrics import LOWER_BOUND, METRIC, METRICS
from rlpto.evaluation.plots import Plot
from rlpto.evaluation.report import About, headline, report_html
from rlpto.evaluation.runner import Cell, FinishedCell, evaluate
from rlpto.evaluation.tables import Results, results

from .conftest import POLICIES
from .helpers import toy_record

ABOUT = About(
    title="Toys <1> & $more",
    trace="a toy trace",
    config="queue:\n  inside: fifo\nprice: $5\n",
    commands=["rlpto evaluate configs/toy.yaml", "--seeds 3"],
    versions={"rlpto": "1.2.3"},
    facts={"Cluster": "2 nodes x 8 GPUs"},
)
VOID = {"meta", "img", "br", "link"}


class Page(HTMLParser):
    """Collects tags and text, and checks that every tag is closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def html(toy_results: Results, toy_plots: list[Plot]) -> str:
    return report_html(toy_results, toy_plots, ABOUT)


def test_nothing_is_loaded_from_outside_and_every_image_is_embedded(html: str) -> None:
    page = Page(html)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "embed", "base"})
    for tag, attributes in page.tags:
        assert "href" not in attributes, tag
        assert "srcset" not in attributes, tag
    for outside in ("http:", "https:", "url(", "@import"):
        assert outside not in html
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == 4
    for image in images:
        kind, _, data = (image["src"] or "").partition(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data).startswith(b"\x89PNG")
        assert image["alt"]


def test_policies_setting_metrics_and_reproduction_are_all_there(html: str) -> None:
    text = Page(html).text
    for word in (*POLICIES, LOWER_BOUND, "Toys <1> & $more", "a toy trace", "2 nodes x 8 GPUs", "rlpto 1.2.3",
                 "rlpto evaluate configs/toy.yaml", "price: $5", "noisy", "w0, w1", "0, 1, 2",
                 *(metric.description for metric in METRICS)):  # fmt: skip
        assert word in text
    assert "only 2 independent samples per policy" in text


def test_without_a_bound_nothing_names_it(finished: list[FinishedCell]) -> None:
    unbounded = [replace(done, bound={}) for done in finished[:-1]] + finished[-1:]
    shown = results(unbounded, "online, shared fits, remaining learnt")
    assert [summary.policy for summary in shown.summaries if summary.policy == LOWER_BOUND] == []
    text = Page(report_html(shown, [], ABOUT)).text
    assert LOWER_BOUND not in text
    assert "online, shared fits, remaining learnt (policies see what was fitted" in " ".join(text.split())
    assert "alone on the cluster" not in text.partition("What the figures mean")[0]


def found_of(rewards: dict[str, dict[str, float]], reference: str | None = None) -> Results:
    """Results of policies from their reward in each window."""
    cells = [
        FinishedCell(Cell(policy, window, 0), dict.fromkeys(METRIC, 1.0) | {"reward": reward}, {}, Path())
        for policy, mine in rewards.items()
        for window, reward in mine.items()
    ]
    return results(cells, "online", reference)


def test_the_result_is_one_sentence() -> None:
    base, eight = {f"w{i}": 10.0 * i for i in range(8)}, range(8)
    better = {f"w{i}": 10.0 * i + 2 + i % 2 for i in eight}
    said = headline(found_of({"fifo": base, "agent": better, "last": base}, "fifo"))
    assert said == "agent +2.50 [+2.00, +3.00] reward over fifo, ahead in 8 of 8 windows"
    worse = {f"w{i}": 10.0 * i + (1 if i in (0, 2, 4) else -1) for i in eight}
    said = headline(found_of({"fifo": base, "las": worse}))
    assert said.startswith("las -0.25 [")
    assert said.endswith("] reward against fifo, ahead in 3 of 8 windows, which may be chance")
    assert headline(found_of({"fifo": base, "las": base})) == "las earns the same reward as fifo in all 8 windows"
    one = {"w": 3.0}
    assert headline(found_of({"fifo": one})) == "fifo earns a reward of 3.00"
    alone = headline(found_of({"fifo": one, "las": {"w": 4.0}}))
    assert alone == "las +1.00 reward over fifo, ahead in 1 of 1 window, which may be chance"


def test_the_result_and_the_reward_come_first_and_both_tables_are_in_one_order(html: str, toy_results: Results) -> None:
    places = [html.index(part) for part in (
        'class="result"', 'id="reward"', "Policies, best reward first", "Paired differences",
        'id="side_by_side"', "What was run", "What the figures mean",
    )]  # fmt: skip
    assert places == sorted(places)
    first, _, paired, *_ = re.findall(r"<tbody>(.*?)</tbody>", html, re.DOTALL)
    rows, others = (re.findall(r"<tr[^>]*><th>(.*?)</th>", body) for body in (first, paired))
    assert [row for row in rows if row not in (LOWER_BOUND, toy_results.reference)] == others
    assert "prefers-color-scheme: dark" in html
    assert "<details open" not in html.partition("What was run")[2]


HOSTILE = """<script>alert("1")</script>'&{{ 7 * 7 }}"""


def test_hostile_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    policies = [f"{name}{HOSTILE}" for name in "ab"]
    done = evaluate([Cell(name, f"w{HOSTILE}", 0) for name in policies], toy_record, tmp_path, False, config={})
    found = results(done, "exact")
    about = About(HOSTILE, HOSTILE, HOSTILE, [HOSTILE], {HOSTILE: HOSTILE}, {HOSTILE: HOSTILE})
    plot = Plot(HOSTILE, HOSTILE, HOSTILE, Figure())
    html = report_html(found, [plot], about)
    page = Page(html)
    assert "script" not in {tag for tag, _ in page.tags}
    assert "<script" not in html
    (figure,) = (attributes for tag, attributes in page.tags if tag == "figure")
    (image,) = (attributes for tag, attributes in page.tags if tag == "img")
    assert figure == {"id": HOSTILE}
    assert image["alt"] == f"{HOSTILE}: {HOSTILE}"
    assert image.keys() == {"alt", "src"}
    assert page.text.count(HOSTILE) > 10
