"""Python client of a job service: `rlpto.client.Client`, which the commands of `rlpto` use as well."""

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

from rlpto.io.errors import ConfigError, RlptoError
from rlpto.io.extras import extras
from rlpto.io.files import state_folder, whole_file, write_text
from rlpto.store.jobs import ENDED

with extras():
    import httpx2

DEFAULT_ADDRESS = "http://127.0.0.1:8765"
ADDRESS_VARIABLE, TOKEN_VARIABLE = "RLPTO_SERVICE", "RLPTO_TOKEN"
_RETRIED, _TOO_MANY = (502, 503, 504), 429
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 2.0
_SWITCH_TIMEOUT_S = 190.0
"""Longest wait until a switched policy is in force. The service itself gives up a little earlier."""

Answer = dict[str, Any]
"""An answer of the service, as openapi.json describes it."""


class ServiceError(RlptoError):
    """The service cannot be reached, or refuses. status: HTTP status, 0 without an answer. kind: type of the problem,
    such as `quota-exceeded`."""

    def __init__(self, message: str, status: int = 0, kind: str = "") -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


class Client:
    """A connection to a job service as one of its users. Every method raises ServiceError.

    address: address of the service. Default: $RLPTO_SERVICE, else the service last started on this machine. token:
    secret of the user. Default: $RLPTO_TOKEN, else the admin's token if the service runs on this machine.
    retry_for_s: how long requests are repeated if the service does not answer or is overloaded [s]. Idempotent requests
    are retried. Requests that create users or tokens, switch policies or drain nodes are not. certificate: certificate
    of the service, if the system does not trust it. others: addresses of other services on this machine, if no address
    was chosen.
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
        if not secret and self.address in noted:
            again = f"start it again (`rlpto serve`), or set ${TOKEN_VARIABLE} if it runs elsewhere"
            raise ServiceError(f"the service at {self.address} has ended: {again}")
        if not secret:
            raise ServiceError(f"no token for {self.address}: expected one in ${TOKEN_VARIABLE}, or from `rlpto serve`")
        if not (secret.isascii() and secret.isprintable()):
            raise ServiceError(
                f"the token for {self.address} has characters that no token contains, such as a line break"
            )
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
        """Close the connections."""
        self._http.close()

    def submit(self, program: str, /, **job: Any) -> Answer:
        """Submit a job; it is stored when this returns. job: fields of POST /jobs (gpus, epochs, options, ...)."""
        return self._ask("POST", "/jobs", json={"program": program, **job}, headers=_new_key())

    def submit_array(self, first: int, last: int, program: str, /, **job: Any) -> list[Answer]:
        """Submit one job per number, all or none. The number replaces `{i}` in options and arguments."""
        body = {"job": {"program": program, **job}, "first": first, "last": last}
        return list(self._ask("POST", "/jobs/array", json=body, headers=_new_key())["jobs"])

    def validate(self, program: str, /, **job: Any) -> Answer:
        """Return the job that would be submitted, with its predicted time and GPU-hours."""
        return self._ask("POST", "/jobs/validate", json={"program": program, **job})

    def jobs(
        self, states: Sequence[str] = (), owner: str | None = None, label: str | None = None, limit: int | None = None
    ) -> Iterator[Answer]:
        """Iterate over jobs, newest first, fetched page by page. limit: most jobs. Default: all."""
        left = math.inf if limit is None else limit
        wanted = {"state": list(states), "owner": owner, "label": label}
        given: dict[str, Any] = {name: value for name, value in wanted.items() if value not in (None, [])}
        while left > 0:
            page = self._ask("GET", "/jobs", params={**given, "limit": min(left, 200)})
            yield from page["jobs"]
            left = left - len(page["jobs"]) if page["next"] else 0
            given["cursor"] = page["next"]

    def job(self, job: str) -> Answer:
        """Return a job with its queue position and its prediction."""
        return self._ask("GET", f"/jobs/{_id(job)}")

    def cancel(self, job: str) -> Answer:
        """Cancel a job."""
        return self._ask("POST", f"/jobs/{_id(job)}/cancel")

    def cancel_all(self, label: str | None = None) -> list[Answer]:
        """Cancel all own jobs that have not ended. label: restrict to jobs with this label, as key=value."""
        return list(self._ask("POST", "/jobs/cancel", params={} if label is None else {"label": label})["jobs"])

    def hold(self, job: str) -> Answer:
        """Keep a waiting job from starting until it is released."""
        return self._ask("POST", f"/jobs/{_id(job)}/hold")

    def release(self, job: str) -> Answer:
        """Let a held job start."""
        return self._ask("POST", f"/jobs/{_id(job)}/release")

    def resubmit(self, job: str) -> Answer:
        """Submit an ended job again, and return the new one."""
        return self._ask("POST", f"/jobs/{_id(job)}/resubmit", headers=_new_key())

    def set_priority(self, job: str, priority: str) -> Answer:
        """Change the priority class of a job: high, normal or low."""
        return self._ask("PATCH", f"/jobs/{_id(job)}", json={"priority": priority})

    def wait(self, job: str, timeout: float | None = None) -> Iterator[Answer]:
        """Yield the job now, at each change of state, and once a state when its end is first predicted, until it ends.
        timeout: seconds until ServiceError is raised."""
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
        """Iterate over lines of a job's log from number `start`; a negative number counts from the end. follow: wait
        for new lines until the job has ended."""
        while True:
            page = self._ask("GET", f"/jobs/{_id(job)}/logs", params={"from": start, "limit": 1000})
            yield from page["lines"]
            start = page["next"]
            if not page["lines"]:
                if page["over"] or not follow:
                    return
                time.sleep(0.5)

    def curves(self, job: str) -> Iterator[Answer]:
        """Iterate over loss, accuracy, GPUs, goodput and noise scale of a job over time."""
        since = 0
        while points := (page := self._ask("GET", f"/jobs/{_id(job)}/curves", params={"since": since}))["points"]:
            yield from points
            since = page["next"]

    def script(self, job: str) -> Answer:
        """Return name and source of a job's script. Raises ServiceError `no-script` if it has none."""
        return self._ask("GET", f"/jobs/{_id(job)}/script")

    def save_checkpoint(self, job: str, path: Path) -> None:
        """Write the newest checkpoint of a job to a file: `torch.load(path, weights_only=True)["model"]`. An existing
        file is replaced only by a complete one. Raises ServiceError `no-checkpoint` if there is none."""
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
        """Return waiting jobs in order of service."""
        return list(self._ask("GET", "/queue")["queue"])

    def nodes(self) -> list[Answer]:
        """Return nodes with the GPUs that jobs hold."""
        return list(self._ask("GET", "/nodes")["nodes"])

    def drain_node(self, node: str, seconds: float = 120.0) -> Answer:
        """Announce that a node leaves in some seconds; jobs leave it now. node: its id, or the beginning of it."""
        path, body = f"/nodes/{quote(node, safe='')}/drain", {"seconds": seconds}
        return self._ask("POST", path, json=body, timeout=_SWITCH_TIMEOUT_S, again=False)

    def usage(self, days: float = 30.0, by: str | None = None) -> list[Answer]:
        """Return GPU-hours held by jobs in the last `days` days, by user or by the values of a label."""
        given = {"days": days} if by is None else {"days": days, "by": by}
        return list(self._ask("GET", "/usage", params=given)["usage"])

    def programs(self) -> list[Answer]:
        """Return the programs that may be trained."""
        return list(self._ask("GET", "/programs")["programs"])

    def set_program(self, name: str, program: Mapping[str, Any]) -> Answer:
        """Add or replace a program, with the same keys as in the settings. Only admins may."""
        return self._ask("PUT", f"/programs/{quote(name, safe='')}", json=dict(program))

    def delete_program(self, name: str) -> None:
        """Refuse new jobs of a program. Only admins may."""
        self._ask("DELETE", f"/programs/{quote(name, safe='')}")

    def policies(self) -> list[Answer]:
        """Return the policies that may be switched to."""
        return list(self._ask("GET", "/policies")["policies"])

    def policy(self) -> Answer:
        """Return the policy in force."""
        return self._ask("GET", "/policy")

    def switch(self, policy: str, reason: str = "") -> Answer:
        """Switch to another policy and return once it is in force. A policy that must be compiled takes up to a minute
        the first time."""
        wanted = {"json": {"policy": policy, "reason": reason}, "headers": {"If-Match": f'"{self.policy()["number"]}"'}}
        return self._ask("PUT", "/policy", **wanted, timeout=_SWITCH_TIMEOUT_S, again=False)

    def drain(self, on: bool) -> Answer:
        """Stop jobs from starting, or let them start again."""
        return self._ask("PUT", "/drain", json={"on": on})

    def add_user(self, name: str, role: str) -> Answer:
        """Add a user. Only admins may."""
        return self._ask("POST", "/users", json={"name": name, "role": role}, again=False)

    def make_token(self, user: str, label: str = "", days: float | None = None) -> str:
        """Make a token for a user and return it. Only admins may. days: lifetime. Default: it never expires."""
        path, body = f"/users/{quote(user, safe='')}/tokens", {"label": label, "days": days}
        return str(self._ask("POST", path, json=body, again=False)["token"])

    def me(self) -> Answer:
        """Return the user of this client, with role and quotas."""
        return self._ask("GET", "/me")

    def _ask(self, method: str, path: str, *, again: bool = True, **given: Any) -> Answer:
        """Send a request and return its answer. again: repeat an unanswered request; it must be idempotent. A request
        refused because of its rate is always repeated, after the wait that the service asks for."""
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
            except (TypeError, ValueError) as wrong:  # such as dates, NaN or lone surrogates
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
    """Record a service started by this process; clients on this machine then find its address and token."""
    others = {known: noted for known, noted in _noted().items() if known != address}
    noted = others | {address: (str(token_file.absolute()), os.getpid(), _started(os.getpid()))}
    write_text(_note(), json.dumps(noted), "the note of a service")


def service_is_known() -> bool:
    """Whether a client has a default address: $RLPTO_SERVICE, or a service that was started here."""
    return bool(os.environ.get(ADDRESS_VARIABLE) or _noted())


def _noted() -> dict[str, tuple[str, int, str]]:
    """Return token file, process and its start of each service started on this machine, by address, newest last.

    Ended services are left out; if all have ended, only the newest is returned.
    """
    try:
        noted = json.loads(_note().read_text(encoding="utf-8"))
        found = {address: (str(file), int(process), str(start)) for address, (file, process, start) in noted.items()}
    except (ConfigError, OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    alive = {address: one for address, one in found.items() if _runs(one)}
    return alive or dict([*found.items()][-1:])


def _note() -> Path:
    return state_folder() / "services.json"


def _runs(noted: tuple[str, int, str]) -> bool:
    """Whether the process of a recorded service still runs."""
    _, process, start = noted
    return bool(start) and _started(process) == start


def _started(process: int) -> str:
    """The start of a process, which tells it from a later one with the same number; empty if there is none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        after_name = Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
        return f"{boot} {int(after_name[19])}"
    except (OSError, ValueError, IndexError):
        return ""


def _token_of(noted: Mapping[str, tuple[str, int, str]], address: str) -> str:
    """Return the token of a recorded service. It is empty for any other address, because a token is sent nowhere else,
    and if the service has ended, because another program may listen there now."""
    try:
        if not _runs(noted[address]):
            return ""
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
