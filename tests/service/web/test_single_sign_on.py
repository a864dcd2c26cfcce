"""Single sign-on at a real provider on this machine: who gets in, as whom, and what is refused."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError

from rlpto.io.errors import ConfigError
from rlpto.io.extras import MissingExtraError
from rlpto.service.settings import OidcSettings
from rlpto.service.web.app import make_app
from rlpto.service.web.routes import single_sign_on as oidc
from rlpto.store.database import Store
from rlpto.store.users import user_of_sign_in
from tests.service.web.helpers import ORIGIN, Api, fill, make_settings, problem, running_api, web_process
from tests.service.web.provider import CLIENT, OTHER_KEY, SECRET, Provider, provider
from tests.service.web.test_browser import browser, needs_browser  # noqa: F401

BEGIN = "/login/oidc?next=/history"


@pytest.fixture(scope="module")
def running() -> Iterator[Provider]:
    with provider() as found:
        yield found


@pytest.fixture
def there(running: Provider, monkeypatch: pytest.MonkeyPatch) -> Iterator[Provider]:
    """A provider as it is at first."""
    monkeypatch.setenv("OIDC_SECRET", SECRET)
    kept = {key: getattr(running, key) for key in ("who", "change", "header", "key", "error", "down", "shows_page")}
    yield running
    for key, value in kept.items():
        setattr(running, key, value)


def web_for(there: Provider, **changes: Any) -> dict[str, Any]:
    """Settings of the web process."""
    oidc = {"issuer": there.issuer, "client_id": CLIENT, "client_secret_env": "OIDC_SECRET", "default_role": "user"}
    return {"posts_per_second": 1000, "oidc": oidc | changes}


@contextmanager
def serving(folder: Path, there: Provider, **changes: Any) -> Iterator[Api]:
    with running_api(folder / "service", web=web_for(there, **changes)) as api:
        api.client.headers["Accept"] = "text/html"
        api.service.limits.wrong_sign_ins.most = 100
        yield api


def at_provider(api: Api, path: str = BEGIN) -> str:
    """Begin a sign-in and go through the provider; the address that it sends the browser back to."""
    begun = api.client.get(path, follow_redirects=False)
    assert begun.status_code == 303, begun.text
    return httpx2.get(begun.headers["location"], verify=False).headers["location"]


def sign_in(api: Api) -> Any:
    """A whole sign-in: the answer to the way back."""
    return api.client.get(at_provider(api))


def audit(api: Api) -> list[tuple[str, str, dict[str, Any]]]:
    """By whom what was done, newest first."""
    return [(row["by"], row["action"], row["detail"]) for row in api("GET", "audit", "root").json()["audit"]]


def check_refused(api: Api, answer: Any, code: int, said: str) -> None:
    """One page that says why, one line of the audit trail, and no session."""
    assert answer.status_code == code, answer.text
    assert answer.headers["content-type"].startswith("text/html")
    assert re.search(said, answer.text), answer.text
    assert "rlpto_session_8765" not in api.client.cookies
    (by, action, detail), *_ = audit(api)
    assert (by, action) == ("", "session.refuse")
    assert re.search(said, detail["why"])
    problem(api("GET", "me", None), 401, "unauthorized")
    assert SECRET not in answer.text + str(detail)


def test_a_new_user_gets_in_and_has_a_session_like_others(there: Provider, tmp_path: Path) -> None:
    with serving(tmp_path, there, token_days=10) as api:
        assert "/login/oidc?next=%2Fhistory" in api.client.get("/login?next=/history").text
        answer = sign_in(api)
        assert answer.status_code == 200
        assert 'content="0;url=/history"' in answer.text
        me = api("GET", "me", None).json()
        assert (me["name"], me["role"], me["sign_in"]) == ("Ann.B".lower(), "user", "ann.b@x.org")
        (session,) = api("GET", "users/ann.b/tokens", "root").json()["tokens"]
        assert (session["kind"], session["made_with"]) == ("session", None)
        assert session["expires"] - session["created"] == pytest.approx(12 * 3600)
        assert [one[:2] for one in audit(api)] == [("ann.b", "session.add"), ("ann.b", "user.add")]
        for days, code in ((None, 403), (11, 403), (9, 201)):
            assert api("POST", "tokens", None, json={"days": days}, headers=ORIGIN).status_code == code, "10 at most"
        assert sign_in(api).status_code == 200, "the same user once more"
        assert [one[1] for one in audit(api)].count("user.add") == 1
        newer = next(
            one for one in api("GET", "users/ann.b/tokens", "root").json()["tokens"] if one["kind"] == "session"
        )
        assert api("DELETE", f"users/ann.b/tokens/{newer['id']}", "root").status_code == 204
        problem(api("GET", "me", None), 401, "unauthorized")
        assert api("GET", "me").json()["name"] == "ann", "tokens go on working"


WRONG: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda claims: claims.update(nonce="other"), "nonce is that of another sign-in"),
    (lambda claims: claims.pop("nonce"), "missing the .{1,8}nonce"),
    (lambda claims: claims.update(aud="other"), "[Aa]udience"),
    (lambda claims: claims.update(aud=[CLIENT, "other"], azp="other"), "another client"),
    (lambda claims: claims.update(iss="http://localhost:1/realm"), "[Ii]ssuer"),
    (lambda claims: claims.update(exp=time.time() - 2 * oidc.LEEWAY_S), "expired"),
    (lambda claims: claims.update(iat=time.time() + 600), "not yet valid"),
]


def test_claims_and_signatures_that_are_refused(there: Provider, tmp_path: Path) -> None:
    with serving(tmp_path, there) as api:
        for there.change, said in WRONG:
            check_refused(api, sign_in(api), 401, said)
        there.change = lambda _: None
        for there.header, there.key in (
            ({"alg": "RS256", "kid": "one"}, OTHER_KEY),
            ({"alg": "RS256", "kid": "three"}, OTHER_KEY),
            ({"alg": "HS256", "kid": "one"}, "x" * 64),
            ({"alg": "none", "kid": "one"}, ""),
        ):
            check_refused(api, sign_in(api), 401, "is not valid")
        assert api("GET", "users", "root").text.count("@x.org") == 0
        there.header, there.key = {"alg": "RS512", "kid": "two"}, OTHER_KEY
        assert sign_in(api).status_code == 200


def test_a_way_back_and_a_code_work_once_and_in_their_browser_alone(
    there: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, there) as api:
        back = at_provider(api)
        kept = api.client.cookies["rlpto_sign_in"]
        api.client.cookies.clear()
        check_refused(api, api.client.get(back), 400, "not begun in this browser")
        header = {"Cookie": f"rlpto_sign_in={kept}"}
        assert api.client.get(back, headers=header).status_code == 200
        api.client.cookies.clear()
        check_refused(api, api.client.get(back, headers=header), 400, "is over")
        stolen, state = (re.search(f"{name}=([^&]+)", at_provider(api))[1] for name in ("code", "state"))
        answer = api.client.get(f"/login/oidc/callback?code={stolen}&state={state}")
        check_refused(api, answer, 502, "answers 400 to /realm/token")
        api.client.cookies.clear()
        monkeypatch.setattr(oidc, "SIGN_IN_S", -1.0)
        late = at_provider(api)
        header = {"Cookie": f"rlpto_sign_in={re.search('state=([^&]+)', late)[1]}"}
        check_refused(api, api.client.get(late, headers=header), 400, "is over")


def test_the_provider_refuses_or_is_down(there: Provider, tmp_path: Path) -> None:
    with serving(tmp_path, there) as api:
        there.error = "access_denied"
        check_refused(api, sign_in(api), 403, "access_denied")
        there.error = ""
        back = at_provider(api)
        there.down = True
        check_refused(api, api.client.get(back), 502, "answers 500")
        there.down = False
    with serving(tmp_path / "away", there, issuer="http://localhost:1") as api:
        check_refused(api, api.client.get(BEGIN), 503, "localhost:1 does not answer")
    with serving(tmp_path / "other", there, issuer=f"{there.issuer}/") as api:
        check_refused(api, api.client.get(BEGIN), 502, "names another issuer")


def test_one_returns_to_this_service_only(there: Provider, tmp_path: Path) -> None:
    evil = ("https://evil.example", "//evil.example", "/\\evil.example", "/\t/evil.example", "javascript:x", "", "/ä")
    with serving(tmp_path, there) as api:
        for place in evil:
            check_refused(api, api.client.get("/login/oidc", params={"next": place}), 400, "a path of this service")


def test_who_may_sign_in(there: Provider, tmp_path: Path) -> None:
    known, addresses = there.who, ("", "a b@x.org", ["a"])
    with serving(tmp_path / "any", there) as api:
        for who in ({"email_verified": False}, {"email_verified": "false"}, *({"email": one} for one in addresses)):
            there.who = known | who
            check_refused(api, sign_in(api), 403, "verified your e-mail address|has sent no email")
    there.who = known
    with serving(tmp_path / "added", there, default_role=None) as api:
        check_refused(api, sign_in(api), 403, "ann.b@x.org is no user here")
        api("POST", "users", "root", json={"name": "eve", "role": "developer", "sign_in": "Ann.B@X.org"})
        assert sign_in(api).status_code == 200
        assert api("GET", "me", None).json()["role"] == "developer"
    with serving(tmp_path, there, domains=["y.org", "z.org"]) as api:
        check_refused(api, sign_in(api), 403, "is not of y.org or z.org")
        there.who = there.who | {"email": "Eve@Y.org"}
        assert sign_in(api).status_code == 200
        assert api("GET", "me", None).json()["name"] == "eve"


def test_names_that_others_have_are_not_taken_over(there: Provider, tmp_path: Path) -> None:
    there.who = {"preferred_username": "root"}
    with serving(tmp_path, there, claim="preferred_username") as api:
        check_refused(api, sign_in(api), 403, "there is a user root already")
        assert api("PATCH", "users/ann", "root", json={"sign_in": "root"}).json()["sign_in"] == "root"
        assert "ann" in problem(api("PATCH", "users/bob", "root", json={"sign_in": "root"}), 409, "name-taken")
        problem(api("POST", "users", "root", json={"name": "eve", "sign_in": "root"}), 409, "name-taken")
        assert sign_in(api).status_code == 200
        assert api("GET", "me", None).json()["name"] == "ann"
        api("PATCH", "users/ann", "root", json={"disabled": True})
        api.client.cookies.clear()
        check_refused(api, sign_in(api), 403, "ann is disabled")


def test_groups_of_the_provider_give_roles(there: Provider, tmp_path: Path) -> None:
    roles = {"staff": "developer", "ops": "operator", "chiefs": "admin"}
    with serving(tmp_path, there, roles=roles, role_claim="groups", default_role=None) as api:
        check_refused(api, sign_in(api), 403, "has no role here")
        for groups, role in ((["staff", "ops"], "operator"), ("staff", "developer"), (["chiefs"], "admin")):
            there.who = there.who | {"groups": groups}
            assert sign_in(api).status_code == 200
            assert api("GET", "me", None).json()["role"] == role
        assert ("ann.b", "user.change", {"role": "admin", "by": "single sign-on"}) in audit(api)
        api("PATCH", "users/root", None, json={"role": "user"}, headers=ORIGIN)
        there.who = there.who | {"groups": ["staff"]}
        kept = api.client.cookies["rlpto_session_8765"]
        api.client.cookies.clear()
        assert sign_in(api).status_code == 403, "no admin would be left"
        me = api("GET", "me", None, headers={"Cookie": f"rlpto_session_8765={kept}"}).json()
        assert (me["name"], me["role"]) == ("ann.b", "admin")


def test_too_many_beginnings_are_refused(there: Provider, tmp_path: Path) -> None:
    with serving(tmp_path, there) as api:
        api.service.limits.sign_ins.most = 2
        codes = [api.client.get(BEGIN, follow_redirects=False).status_code for _ in range(3)]
        assert codes == [303, 303, 429]
        assert api.sign_in().status_code == 201


def test_settings_that_are_refused(there: Provider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="expected https, or http on this machine"):
        OidcSettings(issuer="http://sso.example", client_id="x")
    settings = make_settings(tmp_path, web=web_for(there))
    monkeypatch.delitem(sys.modules, oidc.__name__)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "jwt", None)
        with pytest.raises(MissingExtraError, match=r"jwt is not installed; .*rlpto\[oidc\]"):
            make_app(settings)
    monkeypatch.delenv("OIDC_SECRET")
    with pytest.raises(ConfigError, match="client_secret_env: variable OIDC_SECRET of the environment is"):
        make_app(settings)


@pytest.mark.slow
@needs_browser
def test_in_a_browser(there: Provider, tmp_path: Path, browser: Any) -> None:  # noqa: F811
    """The provider is at another site (localhost), from whose page browsers send no strict cookies."""
    there.shows_page = True
    settings = make_settings(tmp_path / "service", web=web_for(there))
    tokens = fill(settings)
    with web_process(settings) as web:
        page = browser.new_context().new_page()
        page.goto(f"{web.address}/history")
        page.get_by_text("Sign in by single sign-on").click()
        page.get_by_text("Continue as Ann").click()
        page.wait_for_url(f"{web.address}/history")
        assert page.locator(".who a").inner_text() == "ann.b"
        page.goto(f"{web.address}/login#{tokens['root']}")
        page.wait_for_url(f"{web.address}/")
        page.goto(f"{web.address}/admin")
        page.once("dialog", lambda dialog: dialog.accept())
        form = page.locator("form[data-api='/api/v1/users/ann.b']")
        form.locator("input[name=sign_in]").fill("")
        with page.expect_navigation():
            form.get_by_text("Apply").click()
        assert user_of_sign_in(Store(settings.database), "ann.b@x.org") is None
        assert SECRET not in web.log()
        assert "Traceback" not in web.log()
        page.context.close()
