"""Single sign-on: users authenticate at an OpenID Connect provider, by its code flow with PKCE."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import ssl
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, get_args
from urllib.parse import quote_plus, urlencode, urlsplit

import httpx2
import jwt
from fastapi import APIRouter, Request
from starlette.responses import RedirectResponse, Response

from rlpto.io.reading import one_line
from rlpto.service.settings import PLAIN_NAME, OidcSettings, is_safe_url
from rlpto.service.web.errors import Problem
from rlpto.service.web.rendering import page
from rlpto.service.web.routes.account import address_of, begin_session, is_encrypted, refuse_sign_in
from rlpto.service.web.state import Service, TheService
from rlpto.store import users
from rlpto.store.database import Store

router = APIRouter(include_in_schema=False)
PLACE = "/login/oidc"
COOKIE = "rlpto_sign_in"
"""Cookie that ties a sign-in to its browser. The provider's redirect must carry it, hence it is not strict."""
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signature algorithms of ID tokens, restricted to asymmetric ones, which only the provider can create."""
SIGN_IN_S = 600.0
"""Longest time that a user may take at the provider."""
LEEWAY_S = 30.0
"""Tolerance for the provider's clock."""
TIMEOUT_S = 10.0
_MOST_BEGUN = 1000
_REQUIRED = ["aud", "exp", "iat", "iss", "nonce", "sub"]
_LOCAL = re.compile(r"/(?![/\\])[!-\[\]-~]{0,2000}")


@dataclass(frozen=True)
class Begun:
    """A sign-in whose user is at the provider. back: path to continue at. until: deadline on a monotonic clock [s]."""

    redirect: str
    back: str
    nonce: str
    verifier: str
    until: float


class SingleSignOn:
    """The provider, and the sign-ins in progress. secret: the service's client secret, empty for a public client."""

    def __init__(self, settings: OidcSettings, secret: str) -> None:
        self.settings, self._secret = settings, secret
        self._host = urlsplit(settings.issuer).netloc
        self._begun: dict[str, Begun] = {}

    async def begin(self, redirect: str, back: str) -> tuple[str, str]:
        """Begin a sign-in. Returns its state, which can be used once, and the provider's address for it."""
        endpoint = _address(await self._discovered(), "authorization_endpoint")
        state, verifier = secrets.token_urlsafe(32), secrets.token_urlsafe(48)
        begun = Begun(redirect, back, secrets.token_urlsafe(32), verifier, time.monotonic() + SIGN_IN_S)
        self._begun[state] = begun
        while len(self._begun) > _MOST_BEGUN:
            del self._begun[next(iter(self._begun))]
        challenge = urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": self.settings.client_id,
            "redirect_uri": redirect,
            "scope": "openid email profile",
            "state": state,
            "nonce": begun.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        return state, f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"

    def take(self, state: str) -> Begun:
        """Return and remove the sign-in with a state. Raises Problem if it is unknown or too old."""
        begun = self._begun.pop(state, None)
        if begun is None or begun.until < time.monotonic():
            raise Problem(400, "sign-in-over", "this sign-in is over, or was not begun here: sign in again")
        return begun

    async def identity(self, begun: Begun, code: str) -> tuple[str, users.Role | None]:
        """Exchange the provider's `code` for the value that identifies the user, and the role by the provider's claims,
        or None if no roles are configured. Raises Problem."""
        found = await self._discovered()
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": begun.redirect}
        form |= {"code_verifier": begun.verifier, "client_id": self.settings.client_id}
        by_header = "client_secret_basic" in found.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        login = None
        if self._secret and by_header:
            login = (quote_plus(self.settings.client_id), quote_plus(self._secret))
        elif self._secret:
            form["client_secret"] = self._secret
        answer = await self._ask("POST", _address(found, "token_endpoint"), data=form, auth=login)
        keys = await self._ask("GET", _address(found, "jwks_uri"))
        return self._identity(self._claims(str(answer.get("id_token", "")), keys, begun.nonce))

    async def _discovered(self) -> dict[str, Any]:
        found = await self._ask("GET", f"{self.settings.issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != self.settings.issuer:
            raise self._failed(f"names another issuer than {self.settings.issuer}")
        return found

    async def _ask(self, method: str, url: str, **given: Any) -> dict[str, Any]:
        """A JSON answer of the provider. Raises Problem with a message for people, without contents of request or
        answer."""
        # Without encryption no authority is trusted, and the known ones need not be read.
        trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if url.lower().startswith("http:") else True
        try:
            async with asyncio.timeout(TIMEOUT_S), httpx2.AsyncClient(verify=trusted) as client:
                answer = await client.request(method, url, **given)
            if answer.status_code != 200:
                raise self._failed(f"answers {answer.status_code} to {urlsplit(url).path}")
            found = answer.json()
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as away:
            said = f"{self._host} does not answer ({type(away).__name__}); try again, or sign in with a token"
            raise Problem(503, "provider-away", said) from None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise self._failed("answers otherwise than in JSON")
        return found

    def _failed(self, said: str) -> Problem:
        return Problem(502, "provider-failed", f"{self._host} {said}; try again, or sign in with a token")

    def _claims(self, token: str, keys: Mapping[str, Any], nonce: str) -> dict[str, Any]:
        """The claims of an ID token, checked. Raises Problem."""
        ours = self.settings
        try:
            header = jwt.get_unverified_header(token)
            known = [key for key in keys.get("keys", ()) if key.get("use", "sig") == "sig"]
            named = [key for key in known if header.get("kid") in (None, key.get("kid"))]
            if len(named) != 1 or header.get("alg") not in ALGORITHMS:
                raise jwt.InvalidKeyError(f"{len(named)} keys of the provider could have signed it")
            key = jwt.PyJWK(named[0], named[0].get("alg") or header["alg"])
            options: Any = {"require": _REQUIRED}
            claims = jwt.decode(
                token, key, ALGORITHMS, options, audience=ours.client_id, issuer=ours.issuer, leeway=LEEWAY_S
            )
            if claims.get("azp", ours.client_id) != ours.client_id:
                raise jwt.InvalidAudienceError("it is for another client")
            if not secrets.compare_digest(str(claims["nonce"]).encode(), nonce.encode()):
                raise jwt.InvalidTokenError("its nonce is that of another sign-in")
        except (jwt.PyJWTError, AttributeError, TypeError, ValueError) as wrong:
            said = f"{self._host} has sent an ID token that is not valid: {one_line(wrong)}; sign in again"
            raise Problem(401, "id-token", said) from None
        return claims

    def _identity(self, claims: Mapping[str, Any]) -> tuple[str, users.Role | None]:
        """The user's value and role by the claims. Raises Problem for a user who may not sign in."""
        ours, value = self.settings, claims.get(self.settings.claim)
        if not isinstance(value, str) or not re.fullmatch(r"[!-~]{1,254}", value):
            raise _refused(f"{self._host} has sent no {ours.claim} of you")
        if (ours.claim == "email" or ours.domains) and claims.get("email_verified") not in (True, "true"):
            raise _refused(f"{self._host} has not verified your e-mail address")
        domain = str(claims.get("email")).rpartition("@")[2].lower()
        if ours.domains and domain not in {one.lower() for one in ours.domains}:
            raise _refused(f"{value} is not of {' or '.join(ours.domains)}")
        if not ours.roles:
            return users.sign_in_key(value), None
        given = claims.get(ours.role_claim or ours.claim, ())
        values = {users.sign_in_key(str(one)) for one in (given if isinstance(given, list) else [given])}
        roles = [role for key, role in ours.roles.items() if users.sign_in_key(key) in values]
        role = max(roles, key=get_args(users.Role).index, default=ours.default_role)
        if role is None:
            raise _refused(f"{value} has no role here: an admin gives one by web.oidc.roles")
        return users.sign_in_key(value), role


def user_of(store: Store, settings: OidcSettings, sign_in: str, role: users.Role | None, at: float) -> users.User:
    """The user who has signed in, or a new one, named after the part of an address before the @. Raises Problem if the
    user may not sign in."""
    known = users.user_of_sign_in(store, sign_in)
    if known is None:
        given = role or settings.default_role
        if given is None:
            raise _refused(f"{sign_in} is no user here: an admin adds users")
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", sign_in.partition("@")[0]).lstrip("._-")[:64]
        if not re.fullmatch(PLAIN_NAME, name) or users.get_user(store, name) is not None:
            raise _refused(f"there is a user {name} already: an admin has to let {sign_in} sign in as a user")
        users.note_change(store, name, "user.add", name, at, {"role": given, "sign_in": sign_in})
        return users.add_user(store, name, given, at, sign_in)
    if known.disabled:
        raise _refused(f"{known.name} is disabled")
    if role in (None, known.role):
        return known
    changed = replace(known, role=role)
    users.change_user(store, changed)
    if not users.has_admin(store):
        raise _refused(f"{sign_in} would be {role}, which would leave no admin")
    users.note_change(store, known.name, "user.change", known.name, at, {"role": role, "by": "single sign-on"})
    return changed


def _address(found: Mapping[str, Any], name: str) -> str:
    """An https address from the provider's description. Raises Problem if there is none."""
    if not is_safe_url(found.get(name)):
        raise Problem(502, "provider-failed", f"the provider's {name} is no https address")
    return str(found[name])


def _refused(said: str) -> Problem:
    return Problem(403, "sign-in-refused", said)


@router.get(PLACE)
async def begin(request: Request, service: TheService, next: str = "/") -> Response:
    """Send a browser to the provider. next: path to continue at."""
    provider: SingleSignOn = request.app.state.single_sign_on
    service.limits.sign_ins.take(address_of(request))
    async with _audited(service, request):
        if not _LOCAL.fullmatch(next):
            raise Problem(400, "wrong-return", "next: expected a path of this service, such as /history")
        scheme = "https" if is_encrypted(service, request) else "http"
        state, there = await provider.begin(f"{scheme}://{request.headers['host']}{PLACE}/callback", next)
    answer, secure = RedirectResponse(there, 303), is_encrypted(service, request)
    answer.set_cookie(COOKIE, state, int(SIGN_IN_S), path=PLACE, secure=secure, httponly=True, samesite="lax")
    return answer


@router.get(f"{PLACE}/callback")
async def callback(request: Request, service: TheService, state: str = "", code: str = "", error: str = "") -> Response:
    """Handle the provider's redirect, and give the browser a session."""
    provider: SingleSignOn = request.app.state.single_sign_on
    async with _audited(service, request):
        if not secrets.compare_digest(request.cookies.get(COOKIE, "").encode(), state.encode()):
            raise Problem(400, "sign-in-over", "this sign-in was not begun in this browser: sign in again")
        begun = provider.take(state)
        if error or not code:
            said = error if re.fullmatch(r"[a-z_]{1,40}", error) else "no code"
            raise _refused(f"the provider has refused the sign-in: {said}")
        sign_in, role = await provider.identity(begun, code)

        def user(store: Store) -> tuple[str, dict[str, str]]:
            return user_of(store, provider.settings, sign_in, role, service.now()).name, {"sign_in": sign_in}

        # Browsers do not send a strict cookie on redirects that began elsewhere: the page itself continues.
        answer = page("signed_in.html", user=None, back=begun.back)
        await begin_session(service, request, answer, user)
    answer.delete_cookie(COOKIE, path=PLACE)
    return answer


@asynccontextmanager
async def _audited(service: Service, request: Request) -> AsyncIterator[None]:
    try:
        yield
    except Problem as refused:
        await refuse_sign_in(service, request, refused)
