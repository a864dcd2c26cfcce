"""YAML files as plain data, with the line of each key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

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
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's if there is one, which is six times as fast
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
    unreasonably large, where the values behind an alias count at each use.
    """
    files = read_yaml_documents(path, expected, error)
    if len(files) != 1:
        raise error(f"{path}: holds {len(files)} documents, expected one of {expected}")
    return files[0]


def read_yaml_documents(
    path: Path, expected: str = "an experiment in YAML", error: type[RlptoError] = ConfigError
) -> list[YamlFile]:
    """The documents of a file, each a mapping. Raises `error` for the faults listed in `read_yaml`."""
    text = read_text(path, expected, error, LARGEST_YAML_BYTES)
    files = []
    for data, lines in _documents(text, path, expected, error):
        if not isinstance(data, dict):
            kind = "a list" if isinstance(data, list) else "a single value"
            raise error(f"{path}: expected {expected}, keys and values at the top, got {kind}")
        files.append(YamlFile(path, data, lines))
    if not files:
        raise error(f"{path}: the file is empty, expected {expected}")
    return files


def parse_value(text: str, place: str) -> object:
    """A typed value, for example of `--set`, parsed as YAML; null if it is empty.

    Raises ConfigError, which begins with `place`, if it is no YAML or too large for a typed value.
    """
    if len(text) > _LONGEST_VALUE:
        raise ConfigError(f"{place}: {len(text):,} characters, expected a value of at most {_LONGEST_VALUE:,}")
    documents = list(_documents(text, place, "a value", ConfigError))
    if len(documents) > 1:
        raise ConfigError(f"{place}: not valid YAML: several documents, expected a value")
    return documents[0][0] if documents else None


def _documents(
    text: str, source: Path | str, expected: str, error: type[RlptoError]
) -> Iterator[tuple[Any, dict[Location, int]]]:
    """Data of every document of a text, and the lines of its keys."""
    try:
        if _is_deep(text):
            raise RecursionError
        loader: Any = _Loader(text)
        while loader.check_node():
            root = loader.get_node()
            lines = _lines(root)
            yield loader.construct_document(root), lines
    except yaml.MarkedYAMLError as broken:
        mark = (broken.problem_mark or broken.context_mark) if isinstance(source, Path) else None
        place = f"{source}:{min(mark.line, text.count(chr(10))) + 1}" if mark else str(source)
        raise error(
            f"{place}: not valid YAML: {one_line(broken.problem or broken.context or 'broken')}, expected {expected}"
        ) from None
    except RecursionError:
        raise error(f"{source}: not valid YAML: nested too deeply, expected {expected}") from None
    except (yaml.YAMLError, *PARSER_ERRORS) as broken:  # such as an impossible date
        raise error(f"{source}: not valid YAML: {one_line(broken)}, expected {expected}") from None


def _is_deep(text: str) -> bool:
    """Whether values are nested deeper than `_DEEPEST`. Far deeper ones overflow libyaml's stack: the process ends."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            return True
    return False


def _lines(root: yaml.Node) -> dict[Location, int]:
    """The line of every key and list entry; for an anchored node, only of its first place.

    Raises ConstructorError for aliases that contain themselves or expand too far, for a key given twice, and for
    invalid keys or numbers.
    """
    lines: dict[Location, int] = {}
    sizes: dict[int, int] = {}  # values of every node by its identity; 0 while it is visited

    def refuse(node: yaml.Node, reason: str) -> NoReturn:
        raise ConstructorError(None, None, reason, node.start_mark)

    def size(node: yaml.Node, place: Location) -> int:
        if (known := sizes.get(id(node))) is not None:
            return known or refuse(node, "an alias stands for something it is part of")
        sizes[id(node)], total = 0, 1
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    refuse(key, f"expected a plain key, got {_kind(key)}")
                if (inside := (*place, key.value)) in lines:
                    refuse(key, f"{dotted_key(inside)}: key given twice, first on line {lines[inside]}")
                lines[inside] = key.start_mark.line + 1
                total += size(key, inside) + size(value, inside)
        elif isinstance(node, yaml.SequenceNode):
            for position, entry in enumerate(node.value):
                lines[(*place, position)] = entry.start_mark.line + 1
                total += size(entry, (*place, position))
        elif node.tag not in _TEXTS and len(node.value) > _LONGEST_NUMBER:
            refuse(node, f"a number of {len(node.value)} characters")
        sizes[id(node)] = total
        if total > _MOST_VALUES:
            refuse(node, f"more than {_MOST_VALUES:,} values")
        return total

    size(root, ())
    return lines


def dotted_key(location: Location) -> str:
    """`a.b.0.c`, the form in which messages and `--set` name a value."""
    return ".".join(str(part) for part in location)


def _kind(node: yaml.Node) -> str:
    return "a list" if isinstance(node, yaml.SequenceNode) else "keys and values"
