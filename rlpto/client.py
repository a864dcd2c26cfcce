"""Asking a job service over the network: `rlpto.client.Client`, which the verbs of the command use as well."""

from __future__ import annotations

import hashlib
import json
import math
import os
import ssl
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rlpto.io.errors import RlptoError
from rlpto.io.extras import extras
from rlpto.io.files import whole_file, write_text
from rlpto.store.jobs import ENDED

with extras():
    import httpx2

DEFAULT_ADDRESS = "http://127.0.0.1:8765"
ADDRESS_VARIABLE, TOKEN_VARIABLE = "RLPTO_SERVICE", "RLPTO_TOKEN"
_RETRIED, _TOO_MANY = (502, 503, 504), 429
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 2.0
_SWITCH_TIMEOUT_S = 190.0
"""Longest wait for a policy to be in force; the service itself gives up a little earlier."""

Answer = dict[str, Any]
"""What the service answers, as openapi.json describes it."""


class ServiceError(RlptoError):
    """The service cannot be reached, or refuses. status: of HTTP, 0: none came. kind: such as `quota-exceeded`."""

    def __init__(self, message: str, status: int = 0, kind: str = "") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


class Client:
    """A job service as one of its users. Every method raises ServiceError.

    address: None: $RLPTO_SERVICE, else the service that was last started on this machine. token: None: $RLPTO_TOKEN,
    else the admin's if the service was started on this machine. retry_for_s: how long a service that does not answer,
    or takes no more for now, is asked again; what is asked twice is done once, and what could not be (users, tokens,
    switches) is asked once.
    certificate: of the service, where the system does not know it. others: addresses of further services on this
    machine, if none was chosen.
    """

    def __init__(
        self,
        address: str | None = None,
        token: str | None = None,
        *,
        retry_for_s: float = 30.0,
        certificate: Path | None = None,
    ) -> None:
        noted, chosen = _noted(), address or os.environ.get(ADDRESS_VARIABLE)
        self.address = (chosen or next(reversed(noted), DEFAULT_ADDRESS)).rstrip("/")
        self.others = [] if chosen else [other for other in noted if other != self.address]
        secret = token or os.environ.get(TOKEN_VARIABLE) or _token_of(noted, self.address)
        if not secret:
            raise ServiceError(f"no token for {self.address}: expected one in ${TOKEN_VARIABLE}, or from `rlpto serve`")
        if not (secret.isascii() and secret.isprintable()):
            raise ServiceError(f"the token for {self.address} has characters that none has, such as the end of a line")
        self._retry_for_s = retry_for_s
        trusted: ssl.SSLContext | bool = True
        try:
            if certificate is not None:
                trusted = ssl.create_default_context(cafile=certificate)
            elif self.address.lower().startswith("http:"):  # all known authorities would be read for nothing
                trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._http = httpx2.Client(
                base_url=f"{self.address}/api/v1",
                headers={"Authorization": f"Bearer {secret}"},
                timeout=httpx2.Timeout(15.0, connect=5.0),
                verify=trusted,
                trust_env=False,
            )
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol, UnicodeError) as wrong:
            raise ServiceError(f"{self.address}: expected the address of a job service: {wrong}") from None
        except OSError as wrong:
            raise ServiceError(f"{certificate}: cannot be read as a certificate (PEM): {wrong}") from None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()

    def submit(self, program: str, /, **job: Any) -> Answer:
        """Submit a job; it is kept when this returns. job: as in POST /jobs (gpus, epochs, options, ...)."""
        return self._ask("POST", "/jobs", json={"program": program, **job}, headers=_new_key())

    def submit_array(self, first: int, last: int, program: str, /, **job: Any) -> list[Answer]:
        """Submit a job for each number, which replaces `{i}` in its options and arguments; all of them, or none."""
        body = {"job": {"program": program, **job}, "first": first, "last": last}
        return list(self._ask("POST", "/jobs/array", json=body, headers=_new_key())["jobs"])

    def validate(self, program: str, /, **job: Any) -> Answer:
        """What would be submitted, and the time and GPU-hours it would take."""
        return self._ask("POST", "/jobs/validate", json={"program": program, **job})

    def jobs(
        self, states: Sequence[str] = (), owner: str | None = None, label: str | None = None, limit: int | None = None
    ) -> Iterator[Answer]:
        """Jobs, newest first, fetched page by page. limit: None: all."""
        left = math.inf if limit is None else limit
        wanted = {"state": list(states), "owner": owner, "label": label}
        given: dict[str, Any] = {name: value for name, value in wanted.items() if value not in (None, [])}
        while left > 0:
            page = self._ask("GET", "/jobs", params={**given, "limit": min(left, 200)})
            yield from page["jobs"]
            left = left - len(page["jobs"]) if page["next"] else 0
            given["cursor"] = page["next"]

    def job(self, job: str) -> Answer:
        """A job with its place in the queue and its prediction."""
        return self._ask("GET", f"/jobs/{_id(job)}")

    def cancel(self, job: str) -> Answer:
        """Let a job end."""
        return self._ask("POST", f"/jobs/{_id(job)}/cancel")

    def cancel_all(self, label: str | None = None) -> list[Answer]:
        """Let all own jobs end that are not over. label: those with this label, as key=value."""
        return list(self._ask("POST", "/jobs/cancel", params={} if label is None else {"label": label})["jobs"])

    def hold(self, job: str) -> Answer:
        """Keep a waiting job from starting until it is released."""
        return self._ask("POST", f"/jobs/{_id(job)}/hold")

    def release(self, job: str) -> Answer:
        """Let a job that is on hold start."""
        return self._ask("POST", f"/jobs/{_id(job)}/release")

    def resubmit(self, job: str) -> Answer:
        """Submit a job that is over once more: the new one."""
        return self._ask("POST", f"/jobs/{_id(job)}/resubmit", headers=_new_key())

    def set_priority(self, job: str, priority: str) -> Answer:
        """Change the priority class of a job: high, normal or low."""
        return self._ask("PATCH", f"/jobs/{_id(job)}", json={"priority": priority})

    def wait(self, job: str, timeout: float | None = None) -> Iterator[Answer]:
        """Yield the job when its state has changed and when its end is first predicted in that state, until it is over.
        timeout: s; ServiceError after it."""
        until, before, announced = math.inf if timeout is None else time.monotonic() + timeout, None, False
        while True:
            found = self.job(job)
            predicted = ((found["prediction"] or {}).get("finish") or 0.0) > time.time()
            if found["state"] != before or (predicted and not announced):
                before, announced = found["state"], predicted
                yield found
            if before in ENDED:
                return
            if time.monotonic() > until:
                raise ServiceError(f"job {job} is still {before} after {timeout:g} s")
            time.sleep(0.5)

    def logs(self, job: str, start: int = 1, *, follow: bool = False) -> Iterator[Answer]:
        """Lines of a job's log from a number on; negative: the last ones. follow: until the job is over."""
        while True:
            page = self._ask("GET", f"/jobs/{_id(job)}/logs", params={"from": start, "limit": 1000})
            yield from page["lines"]
            start = page["next"]
            if not page["lines"]:
                if page["over"] or not follow:
                    return
                time.sleep(0.5)

    def curves(self, job: str) -> Iterator[Answer]:
        """Loss, accuracy, GPUs, goodput and noise scale of a job over time."""
        since = 0
        while points := (page := self._ask("GET", f"/jobs/{_id(job)}/curves", params={"since": since}))["points"]:
            yield from points
            since = page["next"]

    def script(self, job: str) -> Answer:
        """The script that a job trains by: name and source. ServiceError of kind `no-script`: by none."""
        return self._ask("GET", f"/jobs/{_id(job)}/script")

    def save_checkpoint(self, job: str, path: Path) -> None:
        """Write the newest checkpoint of a job to a file: `torch.load(path, weights_only=True)["model"]`. ServiceError
        of kind `no-checkpoint`: there is none. An existing file is replaced once all has arrived."""
        digest = hashlib.sha256()
        try:
            with self._http.stream("GET", f"/jobs/{_id(job)}/checkpoint", timeout=60.0) as answer:
                if answer.status_code != 200:
                    answer.read()
                    raise _refusal(answer)
                with whole_file(path, "a checkpoint", ServiceError) as unfinished:
                    with unfinished.open("wb") as file:
                        for part in answer.iter_bytes():
                            digest.update(part)
                            file.write(part)
                    if answer.headers.get("etag", "").strip('"') != digest.hexdigest():
                        raise ServiceError(f"the checkpoint of job {job} arrived damaged: fetch it again")
        except (httpx2.TransportError, httpx2.StreamError) as broken:
            raise self._unreachable(broken) from None

    def queue(self) -> list[Answer]:
        """Waiting jobs in order of service."""
        return list(self._ask("GET", "/queue")["queue"])

    def nodes(self) -> list[Answer]:
        """Nodes with the GPUs that jobs hold."""
        return list(self._ask("GET", "/nodes")["nodes"])

    def drain_node(self, node: str, seconds: float = 120.0) -> Answer:
        """Announce that a node goes in some seconds: jobs leave it now. node: its id, or how that begins."""
        path, body = f"/nodes/{quote(node, safe='')}/drain", {"seconds": seconds}
        return self._ask("POST", path, json=body, timeout=_SWITCH_TIMEOUT_S, again=False)

    def usage(self, days: float = 30.0, by: str | None = None) -> list[Answer]:
        """GPU-hours that jobs have held in the last days, by user or by the values of a label."""
        given = {"days": days} if by is None else {"days": days, "by": by}
        return list(self._ask("GET", "/usage", params=given)["usage"])

    def programs(self) -> list[Answer]:
        """Programs that may be trained."""
        return list(self._ask("GET", "/programs")["programs"])

    def set_program(self, name: str, program: Mapping[str, Any]) -> Answer:
        """Add or replace a program, with the keys that it has in the settings; admins alone may."""
        return self._ask("PUT", f"/programs/{quote(name, safe='')}", json=dict(program))

    def delete_program(self, name: str) -> None:
        """Let no further jobs of a program be submitted; admins alone may."""
        self._ask("DELETE", f"/programs/{quote(name, safe='')}")

    def policies(self) -> list[Answer]:
        """Policies that may be switched to."""
        return list(self._ask("GET", "/policies")["policies"])

    def policy(self) -> Answer:
        """The policy in force."""
        return self._ask("GET", "/policy")

    def switch(self, policy: str, reason: str = "") -> Answer:
        """Let another policy decide; returns once it is in force, which takes up to a minute the first time that one is
        asked for which has to be compiled."""
        wanted = {"json": {"policy": policy, "reason": reason}, "headers": {"If-Match": f'"{self.policy()["number"]}"'}}
        return self._ask("PUT", "/policy", **wanted, timeout=_SWITCH_TIMEOUT_S, again=False)

    def drain(self, on: bool) -> Answer:
        """Let no further job start, or let them start again."""
        return self._ask("PUT", "/drain", json={"on": on})

    def add_user(self, name: str, role: str) -> Answer:
        """Add a user; admins alone may."""
        return self._ask("POST", "/users", json={"name": name, "role": role}, again=False)

    def make_token(self, user: str, label: str = "", days: float | None = None) -> str:
        """A token of a user; admins alone may. days: until it expires; None: never."""
        path, body = f"/users/{quote(user, safe='')}/tokens", {"label": label, "days": days}
        return str(self._ask("POST", path, json=body, again=False)["token"])

    def me(self) -> Answer:
        """Who this is, and what they may have."""
        return self._ask("GET", "/me")

    def _ask(self, method: str, path: str, *, again: bool = True, **given: Any) -> Answer:
        """The answer to a request. again: ask again where none comes: the same thing asked twice is done once. What is
        refused because too much was asked is always asked again, as the service says when."""
        until, wait = time.monotonic() + self._retry_for_s, _FIRST_WAIT_S
        while True:
            try:
                answer = self._http.request(method, path, **given)
                later = answer.headers.get("Retry-After", "0") if answer.status_code == _TOO_MANY else "0"
                wait = max(wait, float(later)) if later.isdecimal() else wait
                asked_again = answer.status_code == _TOO_MANY or (again and answer.status_code in _RETRIED)
                if not asked_again or time.monotonic() + wait > until:
                    break
            except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as wrong:
                raise ServiceError(f"{self.address}: expected the address of a job service: {wrong}") from None
            except httpx2.TransportError as broken:
                if time.monotonic() > until or not again:
                    raise self._unreachable(broken) from None
            except (TypeError, ValueError) as wrong:  # such as dates, NaN or halves of characters
                raise ServiceError(f"{path}: expected texts, finite numbers, lists, mappings: {wrong}") from None
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_S)
        if answer.is_error:
            raise _refusal(answer)
        try:
            found: Answer = {} if answer.status_code == 204 else answer.json()
        except ValueError:
            raise ServiceError(f"{self.address}: expected the address of a job service, got another page") from None
        return found

    def _unreachable(self, broken: Exception) -> ServiceError:
        said = f"no job service answers at {self.address}: {broken or type(broken).__name__}"
        return ServiceError(f"{said}; see `rlpto serve`")


def note_service(address: str, token_file: Path) -> None:
    """Remember a service that this process has started, so that its address and token need not be typed."""
    others = {known: noted for known, noted in _noted().items() if known != address}
    noted = others | {address: (str(token_file.absolute()), os.getpid())}
    write_text(_note(), json.dumps(noted), "the note of a service")


def service_is_known() -> bool:
    """Whether a client without an address has one: by $RLPTO_SERVICE, or of a service that was started here."""
    return bool(os.environ.get(ADDRESS_VARIABLE) or _noted())


def _noted() -> dict[str, tuple[str, int]]:
    """Return token file and process of each service that was started here by address, newest last.

    Services that have ended are left out, or all but the newest if all have.
    """
    try:
        noted = json.loads(_note().read_text(encoding="utf-8"))
        found = {address: (str(file), int(process)) for address, (file, process) in noted.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    alive = {address: one for address, one in found.items() if Path(f"/proc/{one[1]}").exists()}
    return alive or dict([*found.items()][-1:])


def _note() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "rlpto" / "services.json"


def _token_of(noted: Mapping[str, tuple[str, int]], address: str) -> str:
    """The token of a noted service; empty for any other, so that it is sent nowhere else."""
    try:
        return Path(noted[address][0]).read_text(encoding="ascii").strip()
    except (KeyError, OSError, ValueError):
        return ""


def _new_key() -> dict[str, str]:
    return {"Idempotency-Key": uuid.uuid4().hex}


def _id(job: str) -> str:
    if not job or not job.isascii() or not job.isalnum():
        raise ServiceError(f"{job[:80]!r} is no id of a job: expected one such as jaxmt3k52qpb7")
    return job


def _refusal(answer: httpx2.Response) -> ServiceError:
    try:
        body = answer.json()
        return ServiceError(str(body["detail"]), answer.status_code, str(body["type"]).removeprefix("urn:rlpto:"))
    except (ValueError, KeyError, TypeError):
        return ServiceError(f"{answer.url} answers {answer.status_code}", answer.status_code)
