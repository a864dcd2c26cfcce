"""The pages in a real Chromium: what two users do, and that nothing is loaded from elsewhere."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlpto.service.web import rendering
from rlpto.store import status
from rlpto.store.code_files import packed, unpack
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.jobs import JobRow, change_job, get_job, insert_job
from rlpto.store.programs import ProgramRow, get_program
from rlpto.store.requests import open_requests
from rlpto.store.scripts import get_script
from rlpto.store.users import change_user, get_user
from tests.service.web.demo import fill_demo
from tests.service.web.helpers import WebProcess, fill, make_settings, scheduler_answers, web_process

STATIC = Path(rendering.__file__).parent / "static"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]
REFUSED = "the server responded with a status of 422"
"""What the browser notes where a form was filled in wrongly, as a test does."""
PATIENCE_MS = 60_000
"""How long a page may take on a busy machine."""
KINDS = ("error", "warning")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: .ci/chromium")


def test_vendored_files_are_those_that_were_published() -> None:
    listed = dict(line.split()[::-1] for line in (STATIC / "VENDORED.sha256").read_text().splitlines())
    assert {name for name in os.listdir(STATIC) if re.match(r"(htmx|uplot)-", name)} == set(listed)
    for name, digest in listed.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest, name


class Site:
    """Settings, tokens and ids of jobs of a service, and its web process once it runs."""

    web: WebProcess

    def __init__(self, folder: Path) -> None:
        self.settings = make_settings(folder / "service")
        self.tokens, self.ids = fill(self.settings), fill_demo(self.settings)
        self.store = Store(self.settings.database, durable=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    found = Site(tmp_path_factory.mktemp("browser"))
    with web_process(found.settings) as found.web:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def sign_in(site: Site, browser: Any) -> Iterator[Callable[..., Any]]:
    contexts, wrong = [], []

    def open_page(user: str, site: Site = site, **given: Any) -> Any:
        context = browser.new_context(**given)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.extend([said.text] if said.type in KINDS else []))
        page.on(
            "request", lambda asked: wrong.extend([asked.url] if not asked.url.startswith(site.web.address) else [])
        )
        page.goto(f"{site.web.address}/login#{site.tokens[user]}")
        page.wait_for_url(f"{site.web.address}/")
        page.wait_for_selector("#live[data-state=on]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [one for one in wrong if REFUSED not in one] == [], "no error, no warning, nothing of other origins"


def tab_to(page: Any, selector: str) -> None:
    """Press Tab until the element of a selector has the focus, and can be seen to have it."""
    for _ in range(100):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline != "none", f"{selector} does not show that it has the focus"
            return
    raise AssertionError(f"Tab never comes to {selector}")


@needs_browser
class TestPages:
    def test_submit_watch_and_cancel(self, site: Site, sign_in: Any) -> None:
        """By keyboard, but for the numbers."""
        page = sign_in("ann")
        tab_to(page, "nav a[href='/submit']")
        page.keyboard.press("Enter")
        page.wait_for_selector("#preview tr.chosen")
        tab_to(page, "input[name=name]")
        page.keyboard.type("from the page")
        page.fill("input[name=gpus]", "2")
        page.wait_for_selector("#preview tr.chosen td:first-child:text('2')")
        page.fill("input[name='options.hidden']", "9999")
        page.wait_for_selector("#submit .problem:text('from 1 to 512')")
        page.fill("input[name='options.hidden']", "32")
        tab_to(page, "#submit button")
        page.keyboard.press("Enter")
        page.wait_for_url("**/jobs/j*")
        job = page.url.rpartition("/")[2]
        assert page.inner_text("h1").startswith("from the page")
        page.wait_for_selector("#live[data-state=on]")
        change_job(site.store, job, time.time(), state="running", started=time.time(), gpus_held=2, progress=5.0)
        add_event(site.store, "job", time.time(), job, "ann", {"state": "running"})
        page.wait_for_selector("#job[data-state=running]")
        page.once("dialog", lambda dialog: dialog.accept())
        tab_to(page, "#cancel")
        with page.expect_response(lambda answer: answer.request.method != "GET"):
            page.keyboard.press("Enter")
        assert [(one.kind, one.job) for one in open_requests(site.store)] == [("cancel", job)]
        change_job(site.store, job, time.time(), state="cancelled", ended=time.time(), gpus_held=0)
        add_event(site.store, "job", time.time(), job, "ann", {"state": "cancelled"})
        page.wait_for_selector("#job[data-state=cancelled]")
        assert page.query_selector("#cancel") is None

    @pytest.mark.slow
    def test_a_developer_submits_a_script(self, site: Site, sign_in: Any, tmp_path: Path) -> None:
        page = sign_in("ann")
        page.goto(f"{site.web.address}/submit")
        assert page.locator("#program option").all_inner_texts() == ["digits"], "users submit no code"
        page = sign_in("dev")
        page.goto(f"{site.web.address}/submit")
        page.select_option("#program", "script")
        page.wait_for_selector("#preview:has-text('Choose a script')")
        (tmp_path / "my loop.py").write_text("import layers\n")
        (tmp_path / "layers.zip").write_bytes(b64decode(packed({"layers.py": b"from rlpto import elastic"})))
        page.set_input_files("[name='script.source']", tmp_path / "my loop.py")
        page.fill("[name='script.samples']", "1437")
        page.fill("[name='script.arguments']", "--lr 0.1 --name 'two words'")
        page.wait_for_selector("#submit .problem:text('my_loop.py: expected an elastic.session')")
        page.set_input_files("[name='script.files']", tmp_path / "layers.zip")
        page.wait_for_selector("#preview:has-text('Not measured')")
        page.click("#submit button")
        page.wait_for_url("**/jobs/j*")
        job = get_job(site.store, page.url.rpartition("/")[2])
        assert (job.owner, job.samples, list(job.arguments)) == ("dev", 1437, ["--lr", "0.1", "--name", "two words"])
        script = get_script(site.store, job.script)
        assert (script.name, script.source, list(unpack(script.files))) == (
            "my_loop.py",
            "import layers\n",
            ["layers.py"],
        )
        assert page.locator(".chart:visible").count() == 0, "nothing was reported yet"

    @pytest.mark.slow
    def test_eight_tabs_hear_of_one_event(self, site: Site, sign_in: Any) -> None:
        first = sign_in("root")
        tabs = [first]
        for _ in range(7):
            tab = first.context.new_page()
            tab.goto(site.web.address)
            tabs.append(tab)
        for tab in tabs:
            tab.wait_for_selector("#live[data-state=on]")
        status.set_drained(site.store, True)
        add_event(site.store, "drain", time.time(), body={"on": True})
        for tab in tabs:
            tab.bring_to_front()
            tab.wait_for_selector("text=drained: no job starts")
        status.set_drained(site.store, False)

    @pytest.mark.slow
    def test_allocations_are_read_by_keyboard_and_name_the_hosts(self, sign_in: Any) -> None:
        page = sign_in("root")
        assert "host-2.example" in page.inner_text("#nodes")
        page.wait_for_selector("#gantt[data-bars]")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.focus("#gantt")
        page.keyboard.press("ArrowRight")
        assert " GPU" in page.inner_text("#gantt-said")
        assert re.search(r"of host-\S+ \S+ from \d{4}-\d\d-\d\d \d\d:\d\d:\d\d for", page.inner_text("#gantt-said"))
        newest = re.search(r"at\d{4}-\d\d-\d\d \d\d:\d\d:\d\dreward[\d.]+", page.inner_text("#reward"))
        assert newest, "without pointing at it"
        page.keyboard.press("Enter")
        page.wait_for_url("**/jobs/j*")

    def test_an_operator_switches_by_keyboard_and_others_see_it(self, site: Site, sign_in: Any) -> None:
        user, page = sign_in("ann"), sign_in("olga")
        assert user.query_selector("#switch") is None
        tab_to(page, "#switch summary")
        page.keyboard.press("Enter")
        tab_to(page, "#switch select")
        page.keyboard.type("round")
        tab_to(page, "#switch input")
        page.keyboard.type("by keys")
        with scheduler_answers(site.settings.database):
            tab_to(page, "#switch button")
            page.keyboard.press("Enter")
            page.wait_for_selector("#policy-name:text-is('round_robin')")
        add_event(site.store, "policy", time.time(), body={"policy": "round_robin"})
        user.wait_for_selector("#policy-name:text-is('round_robin')")

    def test_a_printed_link_signs_in_where_the_page_is_open(self, site: Site, browser: Any) -> None:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{site.web.address}/login")
        page.goto(f"{site.web.address}/login#{site.tokens['ann']}")
        page.wait_for_url(f"{site.web.address}/")
        context.close()

    @pytest.mark.slow
    def test_logs_are_text_and_a_single_report_is_shown_around_its_time(self, site: Site, sign_in: Any) -> None:
        page = sign_in("root")
        page.goto(f"{site.web.address}/jobs/{site.ids['running']}")
        page.wait_for_selector("#logs:has-text('epoch  79')")
        assert "<b>not bold</b>" in page.inner_text("#logs")
        assert page.query_selector("#logs b") is None
        first = page.inner_text("#logs").splitlines()[0]
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  epoch", first), "every line has its time"
        page.goto(f"{site.web.address}/jobs/{site.ids['one']}")
        for chart, most in (("gpus", 60), ("loss", 1), ("noise", 1)):
            page.wait_for_selector(f"#{chart} canvas")
            assert page.evaluate(f"rlptoRange('{chart}')") == most, chart
        assert "goodput [samples/s]" in page.inner_text("#gpus")

    @pytest.mark.slow
    def test_an_admin_changes_users_sessions_and_programs(self, site: Site, sign_in: Any) -> None:
        theirs, page = sign_in("bob"), sign_in("root")
        theirs.close()  # it would ask on, without a session
        page.goto(f"{site.web.address}/admin")

        def confirmed(selector: str) -> None:
            page.once("dialog", lambda dialog: dialog.accept())
            with page.expect_navigation():
                page.click(selector)

        form = "form[data-api='/api/v1/users/dev']"
        page.select_option(f"{form} select", "operator")
        page.once("dialog", lambda dialog: dialog.dismiss())
        page.click(f"{form} button")
        dev = get_user(site.store, "dev")
        assert dev.role == "developer", "not by choosing alone, nor unconfirmed"
        confirmed(f"{form} button")
        assert get_user(site.store, "dev") == replace(dev, role="operator"), "and nothing else"
        change_user(site.store, replace(dev, jobs_queued=7))
        page.reload()
        page.fill(f"{form} input[name=jobs_queued]", "")
        confirmed(f"{form} button")
        assert get_user(site.store, "dev") == dev, "empty: as the settings say"

        page.click("#t-bob summary")
        confirmed("#t-bob tr:has-text('session') button >> nth=0")
        assert theirs.context.request.get(f"{site.web.address}/api/v1/me").status == 401

        page.click("text=Add a program")
        page.fill("[data-in-path]", "mine")
        with page.expect_navigation():
            page.click("button:text-is('Add')")
        row = "#h-programs ~ .scroll tr:has-text('mine')"
        page.click(f"{row} summary")
        page.fill("#p-mine", '{"program": {"training": "a:B"}, "most_gpus": 0}')
        page.click(f"{row} button:text-is('Save')")
        page.wait_for_selector(f"{row} [role=alert]:has-text('body.most_gpus')")
        page.fill("#p-mine", '{"program": {"training": "a:B"}}')
        with page.expect_navigation():
            page.click(f"{row} button:text-is('Save')")
        confirmed(f"{row} button:text-is('Delete')")
        assert get_program(site.store, "mine") == ProgramRow("mine", {"program": {"training": "a:B"}}, "deleted")

    @pytest.mark.slow
    def test_signing_out(self, site: Site, sign_in: Any) -> None:
        page = sign_in("ann")
        page.click("text=Sign out")
        page.wait_for_url("**/login")
        page.goto(f"{site.web.address}/history")
        assert page.url.endswith("/login?next=%2Fhistory")


@pytest.fixture
def crowded(tmp_path: Path) -> Iterator[Site]:
    """Two hundred jobs that wait, with names and labels as long as they may be."""
    found = Site(tmp_path)
    store, now, rows = found.store, time.time(), []
    with store.transaction():
        for number in range(200):
            name = ("W" * 128, "no-space-" * 14, f"sweep number {number}")[number % 3]
            labels = {"experiment": "a-long-value-" * 4}
            job = insert_job(store, JobRow("ann", name, "digits", 20.0, 2, 1, 4, labels=labels), now)
            change_job(store, job.id, now, state="queued", queued=now)
            rows.append(status.QueueRow(job.id, number + 1, 2 * number, "jobs before it ask for many GPUs"))
        status.set_queue(store, rows, status.queue(store))
    found.ids["long"] = rows[0].job
    with web_process(found.settings) as found.web:
        yield found


@pytest.mark.slow
@needs_browser
def test_crowded_pages_fit_into_the_window_and_lead_to_the_rest(crowded: Site, sign_in: Any) -> None:
    page = sign_in("root", crowded, color_scheme="dark")
    inside = "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.outerHTML.slice(0, 90))"
    for path in ("/", f"/jobs/{crowded.ids['long']}", "/history?state=queued", "/submit", "/admin", "/account"):
        page.goto(crowded.web.address + path)
        for width in (400, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_timeout(200)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            assert page.eval_on_selector_all("main .scroll", inside) == [] or path in ("/submit", "/admin"), path
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 20, 21)", "dark"
    page.goto(crowded.web.address)
    assert page.locator("#queue tbody tr").count() < 30
    page.click("text=all that wait")
    page.wait_for_url("**/history?state=queued")
    page.click("text=Older jobs")
    assert page.locator("tbody tr").count() == 50
