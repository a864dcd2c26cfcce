"""Types of values from the network. All are bounded, and later code need not check again."""

from __future__ import annotations

import unicodedata
from typing import Annotated

from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from rlpto.performance.metrics import MetricName
from rlpto.service.settings import LONGEST_OPTION, PLAIN_NAME
from rlpto.store.code_files import LARGEST_TEXT
from rlpto.store.jobs import Priority
from rlpto.store.program_keys import MOST_REQUIREMENTS, Requirement
from rlpto.store.users import Role, sign_in_key

_PLAIN_MARKS = " .,:;+=_()#@[]-"


def _is_plain(text: str) -> str:
    """Check for letters and digits of any script, and marks without meaning to a shell, HTML or a file system."""
    if any(c not in _PLAIN_MARKS and unicodedata.category(c)[0] not in "LMN" for c in text):
        raise ValueError(f"expected letters, digits, spaces and any of {_PLAIN_MARKS.strip()}")
    if text and not (text.strip(" .") and text == text.strip()):
        raise ValueError("expected a name that has letters or digits, without spaces around it")
    return text


def _is_unicode(text: str) -> str:
    """Check that a text can be encoded and has no NUL."""
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("expected Unicode text without NUL and lone surrogates")
    return text


Label = Annotated[str, Field(max_length=128), AfterValidator(_is_plain)]
"""Text for people: names of jobs, reasons, labels."""
PlainName = Annotated[str, Field(pattern=PLAIN_NAME)]
LabelKey = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$")]
LabelValue = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_is_plain)]
OptionName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
OptionText = Annotated[str, Field(max_length=LONGEST_OPTION)]
LARGEST_NUMBER = 10**15
OptionNumber = Annotated[float, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
OptionInteger = Annotated[int, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]


def _is_option(value: object) -> object:
    number = isinstance(value, int | float) and abs(value) <= LARGEST_NUMBER  # true and false, too
    if number or (isinstance(value, str) and len(value) <= LONGEST_OPTION):
        return value
    text = f"a text of at most {LONGEST_OPTION} characters"
    raise ValueError(f"expected true, false, a number from -{LARGEST_NUMBER:.0e} to {LARGEST_NUMBER:.0e} or {text}")


OptionValue = Annotated[bool | OptionInteger | OptionNumber | OptionText, BeforeValidator(_is_option)]
"""One error for a wrong value, not one for each type."""
_SIGN_IN = "Value by which single sign-on knows the user, such as an address; null: by none."
SignIn = Annotated[str, Field(max_length=254, pattern=r"^[!-~]+$"), AfterValidator(sign_in_key)] | None
Quota = Annotated[int, Field(ge=1, le=10**6)] | None
Gpus = Annotated[int, Field(ge=1, le=16_384)]
JOB_ID = r"^[a-z0-9][a-z0-9-]{0,63}$"
JobId = Annotated[str, Path(pattern=JOB_ID, description="Id of a job.")]
LabelFilter = Annotated[str | None, Query(max_length=100, description="With this label, as key=value.")]
Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str | None, Query(pattern=r"^[0-9]{1,15}$", description="`next` of the page before.")]
NameInPath = Annotated[str, Path(pattern=PLAIN_NAME)]
LARGEST_ROW = 2**53
LARGEST_ARRAY = 1000
"""Most jobs submitted at once."""
LARGEST_SCRIPT = 48 * 1024
"""Most characters of a script; the whole body also has a limit in bytes."""
Source = Annotated[str, Field(min_length=1, max_length=LARGEST_SCRIPT), AfterValidator(_is_unicode)]
LONGEST_ARGUMENT = 256
Argument = Annotated[str, Field(max_length=LONGEST_ARGUMENT), AfterValidator(_is_unicode)]
Files = Annotated[str, Field(max_length=LARGEST_TEXT)]
"""Unpacked only after the sender is known."""


class Body(BaseModel):
    """The body of a request: no unknown keys, no conversion of types, no infinite numbers."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class ScriptBody(Body):
    """A developer's own training loop (docs/elastic.md)."""

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$", description="Of its file.")
    source: Source = Field(description="Its text.")
    arguments: list[Argument] = Field(default_factory=list, max_length=64, description="Of its command line.")
    samples: int = Field(ge=1, le=10**12, description="Samples of an epoch: `data_size` of its session.")
    pip: list[Requirement] = Field(
        default_factory=list, max_length=MOST_REQUIREMENTS, description="Packages for its workers, such as einops>=0.8."
    )
    files: Files = Field("", description="Files that go with it: a zip archive in base64.")


class JobBody(Body):
    """A job to submit."""

    name: Label = Field("", description="A label for people; empty: the program's name.")
    program: PlainName = Field(description="What to train: a program of GET /programs.")
    script: ScriptBody | None = Field(None, description="Role developer only: for a program that trains by scripts.")
    options: dict[OptionName, OptionValue] = Field(
        default_factory=dict, max_length=64, description="Options that the program lets users choose."
    )
    epochs: float | None = Field(None, gt=0, le=1e6, description="Work; null: as the program says.")
    batch_size: int | None = Field(None, ge=1, le=10**9, description="Samples of a step; null: as the program says.")
    metric: MetricName | None = Field(None, description="What its batch size is chosen by; null: as the service says.")
    after: list[Annotated[str, Field(pattern=JOB_ID)]] = Field(
        default_factory=list, max_length=64, description="Jobs that have to finish first; where one does not: rejected."
    )
    most_hours: float | None = Field(None, gt=0, le=1e6, description="Hours from its start until it is cancelled.")
    seed: int | None = Field(None, ge=0, lt=2**31, description="Of the training; null: one of its own.")
    gpus: Gpus = Field(1, description="GPUs it asks for.")
    min_gpus: Gpus = Field(1, description="Fewest it can train on.")
    max_gpus: Gpus | None = Field(None, description="Most it can use; null: what it asks for.")
    priority: Priority = Field("normal", description="Priority class.")
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict, max_length=16, description="To find it by.")


class ArrayBody(Body):
    """Jobs that differ by a number, which replaces `{i}` in arguments of the script and in text options."""

    job: JobBody
    first: int = Field(ge=0, le=10**9, description="Number of the first job.")
    last: int = Field(ge=0, le=10**9, description="Number of the last job.")

    @model_validator(mode="after")
    def _is_bounded(self) -> ArrayBody:
        if not 1 <= self.last - self.first + 1 <= LARGEST_ARRAY:
            got = f"got {self.first} to {self.last}"
            raise ValueError(f"expected first <= last, and {LARGEST_ARRAY} jobs at most, {got}")
        return self


class JobChange(Body):
    """Changes to a job."""

    priority: Priority


class PolicyChange(Body):
    """Switch to another policy."""

    policy: PlainName = Field(description="One of GET /policies.")
    reason: Label = Field("", description="Why, for the audit trail.")


class TokenBody(Body):
    """A token to make."""

    label: Label = Field("", description="What it is for.")
    days: float | None = Field(None, gt=0, le=3650, description="Until it expires; null: never.")


class SessionBody(Body):
    """Signing in with a browser."""

    token: Annotated[str, Field(min_length=1, max_length=200)]


class UserBody(Body):
    """A user to add."""

    name: PlainName
    role: Role = "user"
    sign_in: SignIn = Field(None, description=_SIGN_IN)


class UserChange(Body):
    """Changes to a user; omitted fields stay unchanged."""

    role: Role = "user"
    disabled: bool = False
    gpus_held: Quota = Field(None, description="GPUs that all jobs of the user may hold; null: as the settings say.")
    jobs_queued: Quota = Field(None, description="Jobs of the user that are not over; null: as the settings say.")
    highest_priority: Priority | None = Field(None, description="Highest class of jobs; null: as the settings say.")
    sign_in: SignIn = Field(None, description=_SIGN_IN)


class LeaveBody(Body):
    """Time until a node leaves."""

    seconds: float = Field(120.0, ge=0, le=1e6, description="Until it goes.")


class DrainBody(Body):
    """Whether to keep jobs from starting."""

    on: bool
