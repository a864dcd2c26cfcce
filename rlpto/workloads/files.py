"""Find the trace files of an experiment's paths, and read them in any format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rlpto.io.errors import ConfigError, TraceError
from rlpto.io.files import file_there, is_there
from rlpto.io.paths import example_trace, trace_names
from rlpto.io.reading import one_line
from rlpto.workloads.importers import detect_format, format_names, import_trace
from rlpto.workloads.trace import Trace, is_trace_file, read_trace

KEYS = {"train": "train_path", "validation": "validation_path", "test": "path"}
"""Key of `workload` that names the files of a split."""


def read_any(path: Path, format: str | None = None) -> Trace:
    """Read a trace in RLPTO's own form, or in any importable format. format default: detected from the file.

    path: a file, or the name of a trace that comes with RLPTO, such as microsoft/cluster04.

    Raises TraceError if the file is missing or broken, or holds no jobs.
    """
    found = path if file_there(path) else example_trace(path)
    if found is None:
        name = path.stem if path.stem in format_names() else "FORMAT"
        raise TraceError(
            f"{path}: no such trace; make it with `rlpto trace import {name} FILE -o {path}`, "
            f"or take one that comes with RLPTO: {', '.join(trace_names())}"
        )
    path = found
    if not is_trace_file(path):
        return import_trace(format or detect_format(path), path).trace
    trace = read_trace(path)
    if not len(trace):
        raise TraceError(f"{path}: no jobs, expected at least one")
    return trace


def files_by_split(paths: Mapping[str, Sequence[Path]], drawn: bool) -> dict[str, tuple[Path, ...]]:
    """Return the files of every split of `KEYS`, with wildcards in paths expanded.

    drawn: windows are drawn from files; otherwise each file is one window. Raises TraceError if files are missing,
    ConfigError if two files share a name, or a file is used for testing and for another split.
    """
    files = {split: tuple(path for pattern in paths[split] for path in expand(pattern)) for split in KEYS}
    # Windows drawn from one file are numbered across splits; whole files have no numbers.
    together = (("train",), ("validation",), ("test",)) if drawn else (tuple(KEYS),)
    for splits in together:
        named: set[str] = set()
        for key, path in ((KEYS[split], path) for split in splits for path in files[split]):
            if stem(path) in named:
                said = f"a second file called {stem(path)}, expected one for each window"
                raise ConfigError(f"workload.{key}: {path}: {said}")
            named.add(stem(path))
    for split in ("train", "validation"):
        seen = next((path for path in files[split] if stem(path) in map(stem, files["test"])), None)
        if seen is not None:
            raise ConfigError(f"workload.{KEYS[split]}: {seen} is also a test file, expected one or the other")
    return files


def stem(path: Path) -> str:
    """Return the name of a file without any endings, used as the name of windows."""
    return path.name.partition(".")[0]


def expand(pattern: Path) -> Iterable[Path]:
    """Return the files of a path with wildcards, in natural order of numbers; without wildcards, the path itself."""
    if is_there(pattern) or not any(mark in str(pattern) for mark in "*?["):
        return [pattern]
    first = next(i for i, part in enumerate(pattern.parts) if any(mark in part for mark in "*?["))
    try:
        found = sorted(Path(*pattern.parts[:first]).glob(str(Path(*pattern.parts[first:]))), key=_natural)
    except (OSError, ValueError) as error:  # a name that no file system takes, or ** within one
        said = getattr(error, "strerror", None) or error
        raise TraceError(f"{one_line(pattern)}: {said}, expected at least one trace") from None
    if not found:
        raise TraceError(f"{one_line(pattern)}: no such files, expected at least one trace")
    return found


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key that orders numbers in a name by value."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdecimal() else (0, part) for part in parts]
