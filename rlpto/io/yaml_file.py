"""YAML files as plain data that remembers on which line each key stands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from rlpto.io.errors import ConfigError, RlptoError
from rlpto.io.reading import LARGEST_YAML_BYTES, PARSER_ERRORS, one_line, read_text

Location = tuple[str | int, ...]
"""Keys and list positions from the root of a file to a value."""

_MOST_VALUES = 200_000
"""Most values of a file; values behind an alias count at each use."""
_LONGEST_NUMBER = 400
"""Most characters of a number or a date."""
_LONGEST_VALUE = 100_000
"""Most characters of a value typed on a command line."""
_DEEPEST = 100
_BRACKETS = {"[": 1, "{": 1, "]": -1, "}": -1}
_BRACKET = re.compile(r"[\[\]{}]")
_TEXTS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:binary")


@dataclass(frozen=True)
class YamlFile:
    """A YAML mapping. lines: the line, counted from 1, of every key and list entry."""

    path: Path
    data: dict[str, object]
    lines: dict[Location, int]

    def place(self, location: Location) -> str:
        """`file:line` of a key, or of the closest enclosing key that has a line; `file` for the root."""
        for length in range(len(location), 0, -1):
            line = self.lines.get(location[:length])
            if line is not None:
                return f"{self.path}:{line}"
        return str(self.path)


def read_yaml(path: Path, expected: str = "an experiment in YAML", error: type[RlptoError] = ConfigError) -> YamlFile:
    """Read a file whose root is a mapping.

    Raises `error` if the file is missing, is not UTF-8 YAML, is empty, is not a mapping, has a key twice, or is
    larger than any such file need be, aliases counted as often as they stand for something.
    """
    files = read_yaml_documents(path, expected, error)
    if len(files) != 1:
        raise error(f"{path}: holds {len(files)} documents, expected one of {expected}")
    return files[0]


def read_yaml_documents(
    path: Path, expected: str = "an experiment in YAML", error: type[RlptoError] = ConfigError
) -> list[YamlFile]:
    """The documents of a file, each of them a mapping. Raises `error` as `read_yaml` does."""
    text = read_text(path, expected, error, LARGEST_YAML_BYTES)
    files = []
    for root, data in _documents(text, path, expected, error):
        if not isinstance(data, dict):
            raise error(f"{path}: expected {expected}, keys and values at the top, got {_kind(root)}")
        files.append(YamlFile(path, data, _lines(path, root, error)))
    if not files:
        raise error(f"{path}: the file is empty, expected {expected}")
    return files


def parse_value(text: str, place: str, error: type[RlptoError] = ConfigError) -> object:
    """A typed value, such as that of `--set`, parsed as YAML; null if it is empty.

    Raises `error`, which begins with `place`, if it is no YAML or larger than anything one would type.
    """
    if len(text) > _LONGEST_VALUE:
        raise error(f"{place}: {len(text):,} characters, expected a value of at most {_LONGEST_VALUE:,}")
    documents = list(_documents(text, place, "a value", error))
    if len(documents) > 1:
        raise error(f"{place}: not valid YAML: several documents, expected a value")
    return documents[0][1] if documents else None


def _documents(
    text: str, source: Path | str, expected: str, error: type[RlptoError]
) -> Iterator[tuple[yaml.Node, Any]]:
    """Root and data of every document of a text."""
    if _depth(text) > _DEEPEST:
        raise error(f"{source}: not valid YAML: brackets nested too deeply, expected {expected}")
    try:
        loader: Any = yaml.SafeLoader(text)
        while loader.check_node():
            root = loader.get_node()
            _check_size(root)
            yield root, loader.construct_document(root)
    except yaml.MarkedYAMLError as broken:
        mark = (broken.problem_mark or broken.context_mark) if isinstance(source, Path) else None
        place = f"{source}:{mark.line + 1}" if mark else str(source)
        raise error(
            f"{place}: not valid YAML: {one_line(broken.problem or broken.context or 'broken')}, expected {expected}"
        ) from None
    except RecursionError:
        raise error(f"{source}: not valid YAML: brackets nested too deeply, expected {expected}") from None
    except (yaml.YAMLError, *PARSER_ERRORS) as broken:  # such as an impossible date
        raise error(f"{source}: not valid YAML: {one_line(broken)}, expected {expected}") from None


def _depth(text: str) -> int:
    """Depth of nested brackets anywhere in the text. The parser would take long to reject deep nesting."""
    return max(accumulate(_BRACKETS[bracket] for bracket in _BRACKET.findall(text)), default=0)


def _check_size(root: yaml.Node) -> None:
    """Raise ConstructorError for aliases that contain themselves or expand too far, and for invalid keys or numbers."""
    sizes: dict[int, int] = {}

    def refuse(node: yaml.Node, reason: str) -> None:
        raise ConstructorError(None, None, reason, node.start_mark)

    def size(node: yaml.Node) -> int:
        known = sizes.get(id(node))
        if known == 0:
            refuse(node, "an alias stands for something it is part of")
        if known is not None:
            return known
        sizes[id(node)] = 0
        inside: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    refuse(key, f"expected a plain key, got {_kind(key)}")
                inside += [key, value]
        elif isinstance(node, yaml.SequenceNode):
            inside += node.value
        elif node.tag not in _TEXTS and len(node.value) > _LONGEST_NUMBER:
            refuse(node, f"a number of {len(node.value)} characters")
        sizes[id(node)] = total = 1 + sum(map(size, inside))
        if total > _MOST_VALUES:
            refuse(node, f"more than {_MOST_VALUES:,} values")
        return total

    size(root)


def _lines(path: Path, root: yaml.Node, error: type[RlptoError]) -> dict[Location, int]:
    """The line of every key and list entry; each anchored node is visited once. Raises `error` for a key twice."""
    lines: dict[Location, int] = {}
    seen: set[int] = set()

    def visit(node: yaml.Node, location: Location) -> None:
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                line, place = key.start_mark.line + 1, (*location, key.value)
                if place in lines:
                    raise error(f"{path}:{line}: {dotted_key(place)}: key given twice, first on line {lines[place]}")
                lines[place] = line
                visit(value, place)
        elif isinstance(node, yaml.SequenceNode):
            for position, entry in enumerate(node.value):
                lines[(*location, position)] = entry.start_mark.line + 1
                visit(entry, (*location, position))

    visit(root, ())
    return lines


def dotted_key(location: Location) -> str:
    """`a.b.0.c`, the form in which messages and `--set` name a value."""
    return ".".join(str(part) for part in location)


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "keys and values" if isinstance(node, yaml.MappingNode) else "a single value"
