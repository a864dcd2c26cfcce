"""YAML files as plain data that remembers on which line each key stands."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

import yaml

from rlpto.errors import ConfigError

Location = tuple[str | int, ...]
"""Keys and list positions from the root of a file to a value."""


@dataclass(frozen=True)
class YamlFile:
    """A YAML mapping. lines: the line, counted from 1, of every key and list entry."""

    path: Path
    data: dict[str, object]
    lines: dict[Location, int]

    def place(self, location: Location) -> str:
        """`file:line` of a key; where that has none, of the closest key around it; `file` for the root."""
        for length in range(len(location), 0, -1):
            line = self.lines.get(location[:length])
            if line is not None:
                return f"{self.path}:{line}"
        return str(self.path)


def read_yaml(path: Path) -> YamlFile:
    """Read a file whose root is a mapping.

    Raises ConfigError if the file is missing, is not UTF-8 YAML, is empty, is not a mapping, or has
    a key twice.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: not a text file in UTF-8, expected YAML") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{path}: cannot read the file: {reason}") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            raise ConfigError(f"{path}: the file is empty, expected keys and values")
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(f"{path}: expected keys and values at the top of the file, got {_kind(root)}")
        lines: dict[Location, int] = {}
        _collect_lines(path, root, (), lines, set())
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{place}: not valid YAML: {_one_line(error.problem or error.context or 'broken')}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {_one_line(str(error))}") from None
    except RecursionError:
        raise ConfigError(f"{path}: not valid YAML: brackets nested too deeply") from None
    except ValueError as error:  # such as an impossible date
        raise ConfigError(f"{path}: not valid YAML: {_one_line(str(error))}") from None
    return YamlFile(path, data, lines)


def _collect_lines(path: Path, node: yaml.Node, location: Location, lines: dict[Location, int], seen: set[int]) -> None:
    """Note the line of every key below `node`; each anchored node is visited once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        first: dict[Hashable, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{path}:{line}: expected a plain key, got {_kind(key)}")
            if key.value in first:
                dotted = dotted_key((*location, key.value))
                raise ConfigError(f"{path}:{line}: {dotted}: key given twice, first on line {first[key.value]}")
            first[key.value] = line
            lines[(*location, key.value)] = line
            _collect_lines(path, value, (*location, key.value), lines, seen)
    elif isinstance(node, yaml.SequenceNode):
        for position, entry in enumerate(node.value):
            lines[(*location, position)] = entry.start_mark.line + 1
            _collect_lines(path, entry, (*location, position), lines, seen)


def dotted_key(location: Location) -> str:
    """`a.b.0.c`, the form in which messages and `--set` name a value."""
    return ".".join(str(part) for part in location)


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "keys and values" if isinstance(node, yaml.MappingNode) else "a single value"


def _one_line(text: str) -> str:
    return " ".join(text.split())
