"""Checks of each request before routing (host, origin, size), headers and counts of answers, and rate limits."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Iterator

import prometheus_client
from prometheus_client.core import GaugeMetricFamily, Metric
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlpto.service.settings import LOOPBACK, WebSettings
from rlpto.service.web.errors import API, LARGEST_BODY_BYTES, Problem, too_large
from rlpto.store.database import Store
from rlpto.store.jobs import STATES, count_by_state
from rlpto.store.requests import switch_in_force
from rlpto.store.status import heartbeat, nodes

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
COOKIE = "rlpto_session"
_USUAL_PORTS = {"http": ":80", "https": ":443"}
_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::[0-9]{1,5})?")
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
WINDOW_S = 10.0
"""Window of the rate limits. All changes allowed in a window may be made at once."""
_WRONG_SIGN_INS, _SIGN_INS = 5, 30
"""Limits per address and window: refused sign-ins, and starts of single sign-on, each of which asks the provider."""
_SCRAPES = 20
"""Limit per user and window on readings of `/metrics`, each of which counts all jobs."""
_CLOSING = (400, 408, 413)
"""Answers after which the rest of the request is not read and the connection is closed."""
_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)


def cookie_of(request: Request) -> str:
    """Name of the cookie of a browser's session. Cookies ignore ports, and a machine may have several services."""
    return COOKIE if request.url.port is None else f"{COOKIE}_{request.url.port}"


class RequestGuard:
    """ASGI middleware that checks requests and counts answers in the service's metrics. Starlette's
    TrustedHostMiddleware is not used, because it answers in plain text, and every error here is a problem in JSON."""

    def __init__(self, app: ASGIApp, settings: WebSettings) -> None:
        self._app = RequestBodyLimitMiddleware(app, LARGEST_BODY_BYTES)  # bodies of unknown length
        self._hosts = {host.lower().strip("[]") for host in (*LOOPBACK, settings.host, *settings.hosts)}
        self._behind_proxy = settings.behind_proxy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
                if status in _CLOSING:
                    headers["Connection"] = "close"
            await send(message)

        refusal = self._refusal(scope, Headers(scope=scope))
        try:
            if refusal is not None:
                await refusal.response()(scope, receive, send_guarded)
            else:
                await self._app(scope, receive, send_guarded)
        finally:
            metrics = scope["app"].state.service.metrics
            metrics.note(scope["method"], _route(scope), status, time.perf_counter() - began)

    def _refusal(self, scope: Scope, headers: Headers) -> Problem | None:
        """Reason to refuse a request; None if it is accepted."""
        if "transfer-encoding" in headers and "content-length" in headers:
            return Problem(400, "bad-framing", "expected Content-Length or Transfer-Encoding, got both")
        hosts = headers.getlist("host")
        found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if found is None or found["name"].lower().strip("[]") not in self._hosts:
            detail = "this service does not answer for that host; web.hosts in its settings lists others"
            return Problem(421, "wrong-host", detail)
        if scope["method"] not in SAFE_METHODS:
            origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
            if origin is None:
                is_ours = site in ("same-origin", "none")
            else:
                scheme = "https" if self._behind_proxy else scope["scheme"]  # a proxy terminates TLS
                port = _USUAL_PORTS.get(scheme, "")
                ours = f"{scheme}://{hosts[0].lower().removesuffix(port)}"
                is_ours = origin.lower().removesuffix(port) == ours
            if not is_ours:
                return Problem(403, "wrong-origin", "pages of other origins may not change anything here")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length[:12]) > LARGEST_BODY_BYTES:
            return too_large()
        return None


def _route(scope: Scope) -> str:
    """Path template of the route that answered; "none" if no route did."""
    path = getattr(scope.get("route"), "path", None)
    if path is None:
        return "none"
    # A route of an included router does not know that router's prefix.
    return f"{API}{path}" if scope["path"].startswith(f"{API}/") and not path.startswith(API) else str(path)


class RateLimits:
    """Limits per user on changes, metrics readings and open streams, and per address on sign-ins."""

    def __init__(self, per_second: float, streams: int) -> None:
        self.changes = Windows(per_second * WINDOW_S, "changes")
        self.wrong_sign_ins = Windows(_WRONG_SIGN_INS, "refused sign-ins")
        self.sign_ins = Windows(_SIGN_INS, "sign-ins")
        self.scrapes = Windows(_SCRAPES, "readings of metrics")
        self.most_streams, self.streams = streams, Counter[str]()


class Windows:
    """Counts by key in windows of ten seconds. most: most counts per key and window. what: name of the counted
    objects."""

    def __init__(self, most: float, what: str) -> None:
        self.most, self._what = most, what
        self._began = -math.inf
        self._counts: Counter[str] = Counter()

    def count(self, key: str) -> int:
        """Count one more for a key, and return its count in this window."""
        now = time.monotonic()
        if now >= self._began + WINDOW_S:
            self._began = now
            self._counts.clear()
        self._counts[key] += 1
        return self._counts[key]

    def take(self, key: str) -> None:
        """Count one more for a key. Raises Problem 429 if that exceeds the limit."""
        if self.count(key) > self.most:
            raise self.refusal()

    def refusal(self) -> Problem:
        """The answer to a request beyond the limit."""
        wait = max(1, math.ceil(self._began + WINDOW_S - time.monotonic()))
        detail = f"more than {self.most:g} {self._what} in {WINDOW_S:g} s; try again in {wait} s"
        return Problem(429, "too-many-requests", detail, {"Retry-After": str(wait)})


class ServiceMetrics:
    """Metrics for Prometheus: counts of this process's answers, and the cluster's state in the database at each
    scrape."""

    def __init__(self, store: Store) -> None:
        self._store, self._registry = store, prometheus_client.CollectorRegistry()
        labels = ["method", "route"]
        self._answers = prometheus_client.Counter(
            "rlpto_http_requests", "Answers.", [*labels, "status"], registry=self._registry
        )
        name, said = "rlpto_http_request_seconds", "Time to answer."
        self._seconds = prometheus_client.Histogram(name, said, labels, buckets=_BUCKETS_S, registry=self._registry)
        self._registry.register(self)

    def note(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer."""
        known = method if method in ("GET", "POST", "PUT", "PATCH", "DELETE") else "other"
        self._answers.labels(known, route, str(status)).inc()
        if not route.endswith("/events"):  # the duration of a stream depends on its reader
            self._seconds.labels(known, route).observe(seconds)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return prometheus_client.generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The present values from the database."""
        jobs = GaugeMetricFamily("rlpto_jobs", "Jobs by state.", labels=["state"])
        counts = count_by_state(self._store)
        for state in STATES:
            jobs.add_metric([state], counts.get(state, 0))
        yield jobs
        alive = [node for node in nodes(self._store) if node.alive]
        yield GaugeMetricFamily("rlpto_nodes_alive", "Nodes that are up.", len(alive))
        yield GaugeMetricFamily("rlpto_gpus", "GPUs of nodes that are up.", sum(node.gpus for node in alive))
        held = sum(sum(node.jobs.values()) for node in alive)
        yield GaugeMetricFamily("rlpto_gpus_held", "GPUs that jobs hold.", held)
        switch = switch_in_force(self._store)
        yield GaugeMetricFamily("rlpto_policy_switches", "Number of the last switch.", switch.number if switch else 0)
        if (found := heartbeat(self._store)) is not None:
            at, beat = found
            yield GaugeMetricFamily("rlpto_scheduler_age_seconds", "Since its last sign of life.", time.time() - at)
            yield GaugeMetricFamily("rlpto_scheduler_decisions", "Since it started.", beat.decisions)
            name, said = "rlpto_scheduler_longest_wait_seconds", "Longest wait for the database."
            yield GaugeMetricFamily(name, said, beat.longest_wait)
