"""Parse specs of policies, `name` or `name:option=value,...`.

The name of a user's own policy may be a Python file and a class in it, `my_policy.py:MyPolicy` (`CODE_ENDING`).

`fifo>3600:las>7200:srtf` is a schedule of policies: fifo decides first, las from the first decision at or after
3600 s, srtf from 7200 s (`rlpto.policies.switching`).

`index@average:factor=2` is a policy with a provisioner, which decides how many nodes are rented (`rlpto.provisioning`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rlpto.io.errors import ConfigError
from rlpto.io.reading import one_line
from rlpto.io.yaml_file import parse_value

UNNAMED = ""
"""Key of an option given without a name, as in `pretrained:synthetic`."""
RUN = "run"
"""Option that names the folder of a training, as in `agent:run=runs/mine`."""
FILE_ENDINGS = (".yaml", ".yml", ".safetensors")
"""File endings that mark the value of an option as a file, as in `index:weights=mine.yaml`."""
CODE_ENDING = ".py"
"""Ending of a file with policies."""
SWITCH = ">"
"""Separator before the time of each later policy."""
PROVISION = "@"
"""Separator before the provisioner."""
_BRACKETS = {"[": 1, "{": 1, "]": -1, "}": -1}
_NOT_IN_PATHS = set(",>@[]{}")


@dataclass(frozen=True)
class PolicySpec:
    """A requested policy: its name, and its options as written.

    name: name of an installed policy, or FILE.py:Class. later: time [s] and spec of each policy that takes over, in
    order of time. provisioner: spec of the provisioner, which decides how many nodes are rented, if one is named.
    """

    name: str
    texts: tuple[tuple[str, str], ...] = ()
    later: tuple[tuple[float, PolicySpec], ...] = ()
    provisioner: PolicySpec | None = None

    @property
    def options(self) -> dict[str, object]:
        """Values of the options, read as YAML. Raises ConfigError for invalid YAML."""
        place = f"policy {one_line(self)}: option"
        return {key: text if key in (UNNAMED, RUN) else parse_value(text, f"{place} {key}") for key, text in self.texts}

    @property
    def label(self) -> str:
        """The policy's name in tables: its option `label`, else the spec itself, without the folder of its file."""
        label = self.options.get("label")
        short = replace(self.first, name=":".join([Path(self.file).name, self.kind])) if self.file else self.first
        first = str(short) if label is None else str(label)
        schedule = _schedule(first, [(time, spec.label) for time, spec in self.later])
        return schedule + ("" if self.provisioner is None else f"{PROVISION}{self.provisioner.label}")

    @property
    def file(self) -> str:
        """The Python file that defines the policy; empty for an installed policy."""
        return self.name.partition(":")[0] if ":" in self.name else ""

    @property
    def kind(self) -> str:
        """The policy's class in that file."""
        return self.name.partition(":")[2]

    @property
    def first(self) -> PolicySpec:
        """The policy that decides first, alone."""
        return replace(self, later=(), provisioner=None)

    @property
    def singles(self) -> list[PolicySpec]:
        """The policies of the schedule, each alone."""
        return [self.first, *(spec for _, spec in self.later)]

    @property
    def parts(self) -> list[PolicySpec]:
        """The policies of the schedule, and the provisioner."""
        return self.singles + ([] if self.provisioner is None else [self.provisioner])

    @property
    def paths(self) -> list[Path]:
        """The policy's own file, and files and run folders among its options."""
        return [
            Path(text)
            for spec in self.parts
            for text in (spec.file, *(text for key, text in spec.texts if _is_path(key, text)))
            if text
        ]

    def with_paths(self, change: Callable[[str], str]) -> PolicySpec:
        """Return the spec with `change` applied to every path. Raises ConfigError for a path that no spec can hold."""

        def changed(text: str) -> str:
            path = change(text)
            if set(path) & _NOT_IN_PATHS or (text == self.file and ":" in path):
                raise ConfigError(f"{path}: expected a path without , : > @ and brackets, which end it in a policy")
            return path

        name = f"{changed(self.file)}:{self.kind}" if self.file else self.name
        texts = ((key, changed(text) if _is_path(key, text) else text) for key, text in self.texts)
        later = tuple((time, spec.with_paths(change)) for time, spec in self.later)
        provisioner = None if self.provisioner is None else self.provisioner.with_paths(change)
        return replace(self, name=name, texts=tuple(texts), later=later, provisioner=provisioner)

    def __str__(self) -> str:
        options = ",".join(text if key == UNNAMED else f"{key}={text}" for key, text in self.texts)
        first = f"{self.name}:{options}" if options else self.name
        schedule = _schedule(first, [(time, str(spec)) for time, spec in self.later])
        return schedule + ("" if self.provisioner is None else f"{PROVISION}{self.provisioner}")


def parse_spec(text: str) -> PolicySpec:
    """Parse a spec. Only the first option may have no name.

    Raises ConfigError for options that are not `key=value` or given twice, for later policies without a time or not in
    order of time, and for a provisioner without a name.
    """
    text, named, provision = text.partition(PROVISION)
    first, *parts = map(str.strip, text.split(SWITCH))
    later = tuple(map(parse_switch, parts))
    for part, (before, _), (time, _) in zip(parts[1:], later, later[1:], strict=False):
        if time <= before:
            raise ConfigError(f"policy switch {part}: expected a time later than that before it, {before:g} s")
    return replace(_parse_single(first), later=later, provisioner=parse_provisioner(provision) if named else None)


def parse_provisioner(text: str) -> PolicySpec:
    """Parse the spec of a provisioner. Raises ConfigError."""
    if not text.strip() or set(text) & {PROVISION, SWITCH}:
        raise ConfigError(f"provisioner {text!r}: expected name or name:option=value,..., such as reactive")
    return _parse_single(text.strip())


def parse_switch(part: str) -> tuple[float, PolicySpec]:
    """Parse `SECONDS:POLICY` into time [s] and policy. Raises ConfigError for any other form."""
    text, _, policy = part.partition(":")
    try:
        time = float(text)
    except ValueError:
        time = math.nan
    if not (math.isfinite(time) and time > 0 and policy.strip() and SWITCH not in policy):
        raise ConfigError(f"policy switch {part!r}: expected SECONDS:POLICY, such as 3600:las")
    return time, _parse_single(policy.strip())


def _parse_single(text: str) -> PolicySpec:
    """Parse the spec of one policy."""
    name, _, rest = map(str.strip, text.partition(":"))
    if name.endswith(CODE_ENDING):
        kind, _, rest = rest.partition(":")
        name = f"{name}:{kind.strip()}"
    texts: dict[str, str] = {}
    for item in _split(rest) if rest.strip() else ():
        key, equals, value = item.partition("=")
        key = key.strip()
        if not equals and key and not texts:
            texts[UNNAMED] = key
            continue
        if not equals or not key:
            raise ConfigError(f"policy {text}: expected name:option=value,option=value, got {item.strip()!r}")
        if key in texts:
            raise ConfigError(f"policy {text}: option {key} is given twice")
        texts[key] = value
    return PolicySpec(name, tuple(texts.items()))


def split_specs(text: str) -> list[str]:
    """Split comma-separated specs; `a:x=1,y=[2,3],b` holds the two specs `a:x=1,y=[2,3]` and `b`.

    Raises ConfigError if a spec is empty.
    """
    specs: list[str] = []
    for item in _split(text):
        if specs and ":" in specs[-1] and re.match(r"\s*\w+=", item):
            specs[-1] += f",{item}"
        else:
            specs.append(item.strip())
    if not all(specs):
        raise ConfigError(f"--policies {text}: expected policies separated by commas, such as fifo,las")
    return specs


def policy_label(spec: str) -> str:
    """The name in tables of a spec's policy."""
    return parse_spec(spec).label


def _schedule(first: str, later: list[tuple[float, str]]) -> str:
    """Write a schedule of policies as text."""
    return "".join([first, *(f"{SWITCH}{repr(time).removesuffix('.0')}:{name}" for time, name in later)])


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth = max(0, depth + _BRACKETS.get(character, 0))
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _is_path(key: str, text: str) -> bool:
    """Return whether the value of an option names a file or a run."""
    return key != UNNAMED and (key == RUN or text.endswith(FILE_ENDINGS)) and not set(text) & set("[]{}")
