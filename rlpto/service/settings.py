"""Settings of the job service (`configs/service.yaml`), for the parent and both of its children."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from rlpto.io.errors import ConfigError
from rlpto.io.files import file_there
from rlpto.io.paths import ConfigPath, example_config
from rlpto.io.settings import Settings
from rlpto.io.settings_text import read_settings
from rlpto.store.program_keys import ProgramKeys
from rlpto.store.users import Role

DATABASE = "service.sqlite"
"""Name of the database in the folder of the service."""
STATE_FILE = "cluster.json"
"""File in the service's folder that records the cluster it started. `rlpto cluster up` records its own elsewhere."""
PLAIN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Names of users, programs and options."""
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
"""Environment variable of `rlpto serve` that holds a secret. Secrets never stand in the settings file."""
LONGEST_OPTION = 64
"""Most characters of a text that a user gives as an option."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class OptionSettings(Settings):
    """Values that users may choose for one option of a program. Free text is not allowed, hence no option can be a
    path."""

    type: Literal["integer", "number", "boolean", "choice"]
    """Type of the value; `choice` allows any of `choices`."""
    minimum: float | None = None
    """Smallest value of an integer or a number."""
    maximum: float | None = None
    """Largest value of an integer or a number."""
    choices: tuple[Annotated[str, Field(min_length=1, max_length=LONGEST_OPTION)], ...] = ()
    """Allowed values of a choice."""
    default: bool | int | float | str | None = None
    """Value if a user gives none. Default: the program's value."""
    description: str = Field("", max_length=300)
    """Description of the option on the page."""

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
        """Return a user's value if it is allowed. Raises ValueError with the expected values otherwise."""
        if self.type == "boolean":
            if isinstance(value, bool):
                return value
            raise ValueError("expected true or false")
        if self.type == "choice":
            typed = type(value) in (int, float)  # clients read texts such as 16, 0.10 and 1e-4 as numbers
            text = str(value) if typed else value
            equal = [one for one in self.choices if typed and _number(one) == value]
            if text in self.choices or equal:
                return str(text) if text in self.choices else equal[0]
            raise ValueError(f"expected one of {', '.join(self.choices)}")
        whole = self.type == "integer"
        low, high = self.minimum or 0.0, self.maximum or 0.0
        right_kind = not isinstance(value, bool) and isinstance(value, int if whole else int | float)
        if right_kind and isinstance(value, int | float) and low <= value <= high:
            return value if whole else float(value)
        raise ValueError(f"expected {'a whole number' if whole else 'a number'} from {low:g} to {high:g}")


class CatalogueProgram(Settings):
    """A program that users may train, and the options that they may change."""

    description: str = Field("", max_length=500)
    """Description of the program on the page."""
    program: ProgramKeys
    """The training: keys of `ray.programs` in an experiment file (`training`, `samples`, `epochs`, ...)."""
    options: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")], OptionSettings] = Field(
        default_factory=dict
    )
    """Options that users may set. All others keep their values in `program.options`."""
    batch_sizes: tuple[Annotated[int, Field(ge=1, le=10**9)], ...] = Field((), max_length=32)
    """Batch sizes that users may choose, in samples. Default: only the program's batch size."""
    most_epochs: float = Field(1000.0, gt=0, le=10**6)
    """Most epochs of one job."""
    most_gpus: int = Field(64, ge=1, le=16_384)
    """Most GPUs of one job."""


class OidcSettings(Settings):
    """Single sign-on at an OpenID Connect provider, which calls back at ADDRESS/login/oidc/callback."""

    issuer: str = Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")
    """The provider's issuer, exactly as in its ID tokens: https, or http on this machine."""
    client_id: str = Field(min_length=1)
    """Client ID under which the service is registered at the provider."""
    client_secret_env: Variable | None = None
    """Environment variable with the client's secret. Default: a public client without a secret."""
    name: str = "single sign-on"
    """The provider's name on the page for signing in."""
    claim: Literal["email", "preferred_username"] = "email"
    """Claim of the ID token that identifies a user. Users must not be able to choose its value; `email` must be
    verified."""
    domains: tuple[str, ...] = ()
    """Domains of verified e-mail addresses that may sign in. Default: all."""
    role_claim: str | None = None
    """Claim with the values of `roles`, such as groups. Default: `claim`."""
    roles: dict[str, Role] = Field(default_factory=dict)
    """Role by value of that claim; the highest of several counts. If set, it determines the role at each sign-in."""
    default_role: Role | None = None
    """Role of new users, and of users without an entry in `roles`. Default: they are refused."""
    token_days: float = Field(30.0, gt=0, le=3650)
    """Longest lifetime in days of tokens made in a single sign-on session."""

    @model_validator(mode="after")
    def _is_encrypted(self) -> OidcSettings:
        if not is_safe_url(self.issuer):
            raise ValueError(f"issuer {self.issuer}: expected https, or http on this machine")
        return self

    def secret(self) -> str:
        """Return the client's secret, empty for a public client. Raises ConfigError if its variable is not set."""
        variable = self.client_secret_env
        if variable and not os.environ.get(variable):
            raise ConfigError(f"web.oidc.client_secret_env: variable {variable} of the environment is empty or missing")
        return os.environ[variable] if variable else ""


class WebSettings(Settings):
    """Settings of the web process."""

    host: str = "127.0.0.1"
    """Address to listen on. Any address but loopback needs a certificate, or `behind_proxy`."""
    port: int = Field(8765, ge=0, le=65_535)
    """Port to listen on; 0 picks a free one."""
    hosts: tuple[str, ...] = ()
    """Additional host names under which users reach the service. Requests for any other host are refused."""
    behind_proxy: bool = False
    """Whether a proxy on this machine or network terminates TLS."""
    certificate: ConfigPath | None = None
    """TLS certificate (PEM)."""
    key: ConfigPath | None = None
    """Private key of the certificate (PEM)."""
    posts_per_second: float = Field(20.0, gt=0, le=10_000)
    """Changes that a user may make per second, averaged over ten seconds. Excess requests are answered 429."""
    streams: int = Field(8, ge=1, le=1000)
    """Event streams that a user may hold open."""
    request_seconds: float = Field(15.0, gt=0, le=600)
    """Seconds for receiving a whole request, headers and body, before the connection is closed."""
    session_hours: float = Field(12.0, gt=0, le=720)
    """Hours after which a browser has to sign in again."""
    webhook: str | None = Field(None, pattern=r"^https?://[^\s/?#]+([/?#][!-~]*)?$")
    """Address that receives a POST when a job ends, with `text` for people and the `job`. Default: no webhook."""
    oidc: OidcSettings | None = None
    """Single sign-on. Default: users sign in only with tokens."""

    @field_validator("webhook")
    @classmethod
    def _is_an_address(cls, webhook: str | None) -> str | None:
        _ = webhook and urlsplit(webhook).port  # raises ValueError for brackets that do not close and wrong ports
        return webhook

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
    """Limits on a user's jobs, for users without quotas of their own."""

    gpus_held: int | None = Field(None, ge=1)
    """GPUs held by all jobs of a user. Default: no limit."""
    jobs_queued: int = Field(1000, ge=1, le=100_000)
    """Jobs of a user that have not ended."""
    highest_priority: Literal["high", "normal", "low"] = "high"
    """Highest priority class that users and developers may give to jobs; operators and admins may use all."""


class RetentionSettings(Settings):
    """Limits on the database. The oldest rows are removed first."""

    jobs: int = Field(100_000, ge=100)
    """Ended jobs, with their events, points and spans."""
    audit: int = Field(100_000, ge=1000)
    """Changes in the audit trail, and as many policy switches."""
    logs_days: float = Field(90.0, gt=0)
    """Days that a job's log lines and checkpoints are kept after its end; equally long task volume, answered requests,
    and ended tokens and sessions."""


class SchedulerSettings(Settings):
    """Settings of the scheduler process."""

    address: str | None = None
    """host:port of a Ray cluster, or auto. Default: a local cluster with the experiment's nodes, which the service
    starts and ends."""
    policy: str = "fifo"
    """Policy of the first start; later starts use the policy of the last switch."""
    policies: dict[Annotated[str, Field(pattern=PLAIN_NAME)], str] = Field(default_factory=dict)
    """Additional policies by the name users see, as `rlpto evaluate` takes them: `agent: "agent:run=runs/philly"`."""
    predict_every: float = Field(5.0, gt=0)
    """Minimum seconds between two predictions of starts and finishes."""


class ServiceSettings(Settings):
    """Settings of a job service."""

    folder: Path = Path("runs/service")
    """Folder of database, logs and checkpoints, relative to the working directory."""
    experiment: ConfigPath
    """Experiment file, or example, from which cluster, queue, reward, simulator, forecast and ray are taken."""
    on_stop: Literal["keep", "end"] = "keep"
    """Effect of Ctrl-C: with keep, jobs train on if the cluster stays (`scheduler.address`); with end, they write a
    checkpoint and wait for the next start."""
    web: WebSettings = WebSettings()
    """The web process."""
    scheduler: SchedulerSettings = SchedulerSettings()
    """The scheduler process."""
    quotas: QuotaSettings = QuotaSettings()
    """Limits on a user's jobs."""
    retention: RetentionSettings = RetentionSettings()
    """Limits on the database."""
    programs: dict[Annotated[str, Field(pattern=PLAIN_NAME)], CatalogueProgram] = Field(default_factory=dict)
    """The catalogue of programs that users may train. An admin may change it while the service runs."""

    @property
    def database(self) -> Path:
        """Path of the database."""
        return self.folder / DATABASE

    @property
    def program_specs(self) -> dict[str, dict[str, Any]]:
        """The programs by name as JSON, with only the keys that were given."""
        return {name: entry.model_dump(mode="json", exclude_unset=True) for name, entry in self.programs.items()}


def _number(text: str) -> float | None:
    """The number that a text reads as; None for any other text."""
    try:
        return float(text)
    except ValueError:
        return None


def is_safe_url(url: object) -> bool:
    """Whether nobody in between can read requests to this address: https, or http on this machine."""
    parts = urlsplit(str(url))
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK)


def load_service(path: Path | str) -> ServiceSettings:
    """Read the settings of a service; a name without a suffix is an example's.

    Raises ConfigError, in one line, for everything that is wrong with the file.
    """
    found = Path(path)
    if not file_there(found):  # a folder of that name does not hide the example
        found = example_config(found) or found
    return read_settings(found, ServiceSettings, "settings of a job service in YAML")
