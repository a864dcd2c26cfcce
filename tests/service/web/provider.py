"""A small provider of OpenID Connect on this machine: real keys, real ID tokens, over HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key

from tests.service.web.helpers import answering

CLIENT, SECRET = "rlpto", "a secret: +%/"
KEY, OTHER_KEY = (generate_private_key(public_exponent=65537, key_size=2048) for _ in range(2))


class Provider(ThreadingHTTPServer):
    """Everyone is signed in at once, with the claims of `who`.

    change: changes the claims of the next ID tokens. header, key: that they are signed with. down: answers 500.
    shows_page: people go on by a link on its page.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.issuer = f"http://localhost:{self.server_port}/realm"
        self.who: dict[str, Any] = {"email": "Ann.B@x.org", "email_verified": True, "preferred_username": "annb"}
        self.change: Callable[[dict[str, Any]], object] = lambda _: None
        self.header: dict[str, Any] = {"alg": "RS256", "kid": "one"}
        self.key: RSAPrivateKey | str = KEY
        self.error, self.down, self.shows_page = "", False, False
        self.login = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        self.codes: dict[str, dict[str, str]] = {}

    def authorize(self, asked: dict[str, str]) -> str:
        """Where a browser goes back to."""
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT)
        assert "openid" in asked["scope"].split()
        if self.error:
            answer = {"error": self.error}
        else:
            code = secrets.token_urlsafe(8)
            self.codes[code] = asked
            answer = {"code": code}
        return f"{asked['redirect_uri']}?{urlencode({**answer, 'state': asked['state']})}"

    def exchange(self, form: dict[str, str], header: str) -> dict[str, Any] | None:
        """The answer to a code; None: it is refused."""
        asked = self.codes.pop(form["code"], None)
        user, _, password = base64.b64decode(header.removeprefix("Basic ")).decode().partition(":")
        challenge = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=")
        if asked is None or (unquote_plus(user), unquote_plus(password)) != (CLIENT, SECRET):
            return None
        if asked["code_challenge"] != challenge.decode() or asked["code_challenge_method"] != "S256":
            return None
        if asked["redirect_uri"] != form["redirect_uri"]:
            return None
        now = time.time()
        claims = {"iss": self.issuer, "aud": CLIENT, "sub": "7", "iat": now, "exp": now + 60, "nonce": asked["nonce"]}
        claims |= self.who
        self.change(claims)
        token = jwt.encode(claims, self.key, self.header["alg"], self.header)
        return {"access_token": "x", "token_type": "Bearer", "id_token": token}


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        place, issuer = urlsplit(self.path), self.server.issuer
        if place.path == "/realm/authorize":
            there = self.server.authorize({key: one for key, (one,) in parse_qs(place.query).items()})
            self.send_response(200 if self.server.shows_page else 302)
            self.send_header("Location", there)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f'<a href="{escape(there)}">Continue as Ann</a>'.encode())
        elif place.path == "/realm/keys":
            known = {kid: key.public_key() for kid, key in (("one", KEY), ("two", OTHER_KEY))}
            to_jwk = jwt.algorithms.RSAAlgorithm.to_jwk
            self._answer(
                {"keys": [to_jwk(key, as_dict=True) | {"kid": kid, "use": "sig"} for kid, key in known.items()]}
            )
        elif place.path == "/realm/.well-known/openid-configuration":
            ends = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
            self._answer({"issuer": issuer, **{key: f"{issuer}/{end}" for key, end in ends.items()}})

    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self._answer(
            self.server.exchange({key: one for key, (one,) in form.items()}, self.headers["Authorization"] or "")
        )

    def _answer(self, body: object) -> None:
        self.send_response(500 if self.server.down else 400 if body is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *_: Any) -> None:
        """Silent."""


@contextmanager
def provider() -> Iterator[Provider]:
    """A provider that answers while the block runs."""
    with answering(Provider()) as found:
        yield found
