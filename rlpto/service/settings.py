"""Settings of the job service (`configs/service.yaml`), for the parent and both of its children."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from rlpto.io.errors import ConfigError
from rlpto.io.paths import ConfigPath, example_config
from rlpto.io.settings import Settings
from rlpto.io.settings_text import read_settings
from rlpto.store.program_keys import ProgramKeys
from rlpto.store.users import Role

DATABASE = "service.sqlite"
"""Name of the database in the folder of the service."""
STATE_FILE = "cluster.json"
"""Where the cluster that a service has started is noted, in its folder: not where that of `rlpto cluster up` is."""
PLAIN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Names of users, programs and options."""
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""Variable of the environment of `rlpto serve` that holds a secret, which is never in the file of settings."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class OptionSettings(Settings):
    """What users may choose for one option of a program. There are no free texts, so that no option can be a path."""

    type: Literal["integer", "number", "boolean", "choice"]
    """Kind of value; choice: one of `choices`."""
    minimum: float | None = None
    """integer, number: the smallest."""
    maximum: float | None = None
    """integer, number: the largest."""
    choices: tuple[str, ...] = ()
    """choice: the values there are."""
    default: bool | int | float | str | None = None
    """Value where a user gives none; null: that of the program."""
    description: str = Field("", max_length=300)
    """What it does, for the page."""

    @model_validator(mode="after")
    def _is_bounded(self) -> OptionSettings:
        numeric = self.type in ("integer", "number")
        if numeric and (self.minimum is None or self.maximum is None or self.minimum > self.maximum):
            raise ValueError(f"type {self.type} needs a minimum and a maximum that is not below it")
        if (self.type == "choice") != bool(self.choices):
            raise ValueError(f"type {self.type}: choices are listed for type choice, and only for it")
        if self.default is not None:
            try:
                self.checked(self.default)
            except ValueError as wrong:
                raise ValueError(f"default: {wrong}") from None
        return self

    def checked(self, value: object) -> bool | int | float | str:
        """A user's value. Raises ValueError, which says what was expected, for any that is not allowed."""
        if self.type == "boolean":
            if isinstance(value, bool):
                return value
            raise ValueError("expected true or false")
        if self.type == "choice":
            if isinstance(value, str) and value in self.choices:
                return value
            raise ValueError(f"expected one of {', '.join(self.choices)}")
        whole = self.type == "integer"
        low, high = self.minimum or 0.0, self.maximum or 0.0
        right_kind = not isinstance(value, bool) and isinstance(value, int if whole else int | float)
        if right_kind and isinstance(value, int | float) and low <= value <= high:
            return value if whole else float(value)
        raise ValueError(f"expected {'a whole number' if whole else 'a number'} from {low:g} to {high:g}")


class CatalogueProgram(Settings):
    """A program that users may train, and how far they may change it."""

    description: str = Field("", max_length=500)
    """What it is, for the page."""
    program: ProgramKeys
    """What it trains: keys of `ray.programs` in an experiment file (`training`, `samples`, `epochs`, ...)."""
    options: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")], OptionSettings] = Field(
        default_factory=dict
    )
    """Options that users may set; the others are as in `program.options`."""
    batch_sizes: tuple[Annotated[int, Field(ge=1, le=10**9)], ...] = Field((), max_length=32)
    """Batch sizes that users may choose, in samples; empty: only that of the program."""
    most_epochs: float = Field(1000.0, gt=0, le=10**6)
    """Most epochs of one job."""
    most_gpus: int = Field(64, ge=1, le=16_384)
    """Most GPUs of one job."""


class OidcSettings(Settings):
    """Single sign-on at a provider of OpenID Connect, which calls back at ADDRESS/login/oidc/callback."""

    issuer: str = Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")
    """The provider's issuer, as in its ID tokens: https, or http on this machine."""
    client_id: str = Field(min_length=1)
    """As which the service is registered there."""
    client_secret_env: Variable | None = None
    """Variable with its secret; null: a public client."""
    name: str = "single sign-on"
    """The provider's name on the page for signing in."""
    claim: Literal["email", "preferred_username"] = "email"
    """Claim of the ID token by which a user is known, which users must not be able to choose; email: a verified one."""
    domains: tuple[str, ...] = ()
    """Domains of verified e-mail addresses that may sign in; empty: all."""
    role_claim: str | None = None
    """Claim with the values of `roles`, such as groups; null: `claim`."""
    roles: dict[str, Role] = Field(default_factory=dict)
    """Role by value of that claim, the highest one of several. Where there are some, they decide at each sign-in."""
    default_role: Role | None = None
    """Role of new users, and of those that no entry of `roles` names; null: they are refused."""
    token_days: float = Field(30.0, gt=0, le=3650)
    """Longest life in days of tokens that are made in a session of single sign-on."""

    @model_validator(mode="after")
    def _is_encrypted(self) -> OidcSettings:
        if not is_safe_url(self.issuer):
            raise ValueError(f"issuer {self.issuer}: expected https, or http on this machine")
        return self

    def secret(self) -> str:
        """Return the client's secret; empty for a public client. Raises ConfigError where its variable is not set."""
        variable = self.client_secret_env
        if variable and not os.environ.get(variable):
            raise ConfigError(f"web.oidc.client_secret_env: variable {variable} of the environment is empty or missing")
        return os.environ[variable] if variable else ""


class WebSettings(Settings):
    """The web process."""

    host: str = "127.0.0.1"
    """Address to listen on. Any but loopback needs a certificate, or `behind_proxy`."""
    port: int = Field(8765, ge=0, le=65_535)
    """Port; 0: a free one."""
    hosts: tuple[str, ...] = ()
    """Further names under which users reach the service: requests for any other host are refused."""
    behind_proxy: bool = False
    """A proxy on this machine or network ends TLS."""
    certificate: ConfigPath | None = None
    """TLS certificate (PEM)."""
    key: ConfigPath | None = None
    """Its key (PEM)."""
    posts_per_second: float = Field(20.0, gt=0, le=10_000)
    """Changes that a user may make, per second over ten seconds; more are answered 429."""
    streams: int = Field(8, ge=1, le=1000)
    """Streams of events that a user may hold open."""
    request_seconds: float = Field(15.0, gt=0, le=600)
    """Seconds for receiving a whole request, headers and body; the connection is closed after them."""
    session_hours: float = Field(12.0, gt=0, le=720)
    """Hours after which a browser has to sign in again."""
    webhook: str | None = Field(None, pattern=r"^https?://[^\s/]+")
    """Address that gets a POST when a job is over, with `text` for people and the `job`; null: none."""
    oidc: OidcSettings | None = None
    """Single sign-on; null: users sign in with tokens alone."""

    @model_validator(mode="after")
    def _is_not_in_the_open(self) -> WebSettings:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key are given together")
        if self.host not in LOOPBACK and self.certificate is None and not self.behind_proxy:
            raise ValueError(
                f"host {self.host} can be reached by others: expected a certificate and key, or behind_proxy: true"
            )
        return self


class QuotaSettings(Settings):
    """What a user may have at a time, where the user has no quota of their own."""

    gpus_held: int | None = Field(None, ge=1)
    """GPUs held by all jobs of a user; null: no limit."""
    jobs_queued: int = Field(1000, ge=1, le=100_000)
    """Jobs that are not over."""
    highest_priority: Literal["high", "normal", "low"] = "high"
    """Highest class that users and developers may give to jobs; operators and admins may use all."""


class RetentionSettings(Settings):
    """How much the database keeps. What is older is removed, the oldest first."""

    jobs: int = Field(100_000, ge=100)
    """Jobs that are over, with their events, points and spans."""
    events: int = Field(200_000, ge=1000)
    """Events."""
    points_per_job: int = Field(2000, ge=10)
    """Points of a job's curves; where there are more, every second one goes."""
    decisions: int = Field(20_000, ge=100)
    """Decisions."""
    spans: int = Field(200_000, ge=1000)
    """Allocations that are over."""
    audit: int = Field(100_000, ge=1000)
    """Changes in the audit trail, and as many switches of the policy."""
    logs_days: float = Field(90.0, gt=0)
    """Days after its end that a job's log lines and checkpoints are kept; as long task volume, answered requests, and
    tokens and sessions that have ended."""


class SchedulerSettings(Settings):
    """The scheduler process."""

    address: str | None = None
    """host:port of a Ray cluster, or auto; null: a local one with the nodes of the experiment, which the service starts
    and ends."""
    policy: str = "fifo"
    """Policy of the first start; later that of the last switch."""
    policies: dict[Annotated[str, Field(pattern=PLAIN_NAME)], str] = Field(default_factory=dict)
    """Further policies by the name users see, as `rlpto evaluate` takes them: `agent: "agent:run=runs/philly"`."""
    predict_every: float = Field(5.0, gt=0)
    """Seconds from one prediction of starts and finishes to the next, at least."""


class ServiceSettings(Settings):
    """A job service."""

    folder: Path = Path("runs/service")
    """Where store, logs and checkpoints are kept, relative to the working directory, as runs are."""
    experiment: ConfigPath
    """Experiment file, or example, whose cluster, queue, reward, simulator, forecast and ray hold here."""
    on_stop: Literal["keep", "end"] = "keep"
    """Ctrl-C: keep: jobs train on where the cluster stays (`scheduler.address`); end: they write a checkpoint and wait
    for the next start."""
    web: WebSettings = WebSettings()
    """The web process."""
    scheduler: SchedulerSettings = SchedulerSettings()
    """The scheduler process."""
    quotas: QuotaSettings = QuotaSettings()
    """What a user may have at a time."""
    retention: RetentionSettings = RetentionSettings()
    """How much is kept."""
    programs: dict[Annotated[str, Field(pattern=PLAIN_NAME)], CatalogueProgram] = Field(default_factory=dict)
    """The catalogue: what users may train. An admin may change it while the service runs."""

    @property
    def database(self) -> Path:
        """The database."""
        return self.folder / DATABASE

    @property
    def program_specs(self) -> dict[str, dict[str, Any]]:
        """The programs by name, as JSON, as they are given."""
        return {name: entry.model_dump(mode="json", exclude_unset=True) for name, entry in self.programs.items()}


def is_safe_url(url: object) -> bool:
    """Whether what is sent there can be read by no one in between: https, or http on this machine."""
    parts = urlsplit(str(url))
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)


def load_service(path: Path | str) -> ServiceSettings:
    """Read the settings of a service; a name without ending is that of an example.

    Raises ConfigError, in one line, for everything that is wrong with the file.
    """
    found = Path(path)
    if not found.exists():
        found = example_config(found) or found
    return read_settings(found, ServiceSettings, "settings of a job service in YAML")
