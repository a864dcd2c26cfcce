"""Specs of policies as text, `name` or `name:option=value,...`: the one place that takes them apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from rlpto.errors import ConfigError

UNNAMED = ""
"""Stands for the name of an option that was given without one, as in `pretrained:philly`."""
RUN = "run"
"""Option that names the folder of a training, as in `agent:run=runs/mine`."""
FILE_ENDINGS = (".yaml", ".yml", ".zip")
"""Endings by which the value of an option is known to be a file, as in `index:weights=mine.yaml`."""
_BRACKETS = {"[": 1, "{": 1, "]": -1, "}": -1}


@dataclass(frozen=True)
class PolicySpec:
    """A policy as it was asked for: its name, and its options as they were written."""

    name: str
    texts: tuple[tuple[str, str], ...] = ()

    @property
    def options(self) -> dict[str, object]:
        """Values of the options, read as YAML. Raises ConfigError for a value that is none."""
        found: dict[str, object] = {}
        for key, text in self.texts:
            try:
                found[key] = text if key == UNNAMED else yaml.safe_load(text)
            except (yaml.YAMLError, ValueError, RecursionError):
                raise ConfigError(f"policy {self}: option {key}: cannot read the value {text.strip()!r}") from None
        return found

    @property
    def label(self) -> str:
        """What the policy is called in tables: its option `label`, else the spec itself."""
        label = self.options.get("label")
        return str(self) if label is None else str(label)

    @property
    def paths(self) -> list[Path]:
        """Files and run folders among the options."""
        return [Path(text) for key, text in self.texts if _is_path(key, text)]

    def with_paths(self, change: Callable[[str], str]) -> PolicySpec:
        """The spec with `change` applied to every path among its options."""
        texts = ((key, change(text) if _is_path(key, text) else text) for key, text in self.texts)
        return replace(self, texts=tuple(texts))

    def __str__(self) -> str:
        options = ",".join(text if key == UNNAMED else f"{key}={text}" for key, text in self.texts)
        return f"{self.name}:{options}" if options else self.name


def parse_spec(text: str) -> PolicySpec:
    """A spec from its text; only the first option may have no name.

    Raises ConfigError for a spec without a name, and for options that are not `key=value`.
    """
    name, _, rest = text.partition(":")
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
    return PolicySpec(name.strip(), tuple(texts.items()))


def split_specs(text: str, option: str = "--policies") -> list[str]:
    """Texts of comma-separated specs; `a:x=1,y=[2,3],b` holds the two specs `a:x=1,y=[2,3]` and `b`.

    option: named in messages. Raises ConfigError if a spec is empty.
    """
    specs: list[str] = []
    for item in _split(text):
        if specs and ":" in specs[-1] and re.match(r"\s*\w+=", item):
            specs[-1] += f",{item}"
        else:
            specs.append(item.strip())
    if not all(specs):
        raise ConfigError(f"{option} {text}: expected policies separated by commas, such as fifo,las")
    return specs


def policy_label(spec: str) -> str:
    """What the policy of a spec is called in tables."""
    return parse_spec(spec).label


def spec_of(given: str | Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """Name and options of a spec: its text, or a mapping with `name` and the options."""
    if isinstance(given, str):
        spec = parse_spec(given)
        return spec.name, spec.options
    options = dict(given)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"policy {dict(given)}: expected a key `name` with the policy's name")
    return name, options


def _split(text: str) -> list[str]:
    """Parts between those commas that stand outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth = max(0, depth + _BRACKETS.get(character, 0))
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _is_path(key: str, text: str) -> bool:
    """True for the value of an option that names a file or a run."""
    return key != UNNAMED and (key == RUN or text.endswith(FILE_ENDINGS)) and not set(text) & set("[]{}")
