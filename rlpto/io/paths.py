"""Paths in experiment files: variables filled in, relative to the file that contains them; and examples by name."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, ValidationInfo

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


EXAMPLES = Path(__file__).parents[1].joinpath("configs").resolve()
"""Experiment files, tuned weights, trained agents and recorded traces that come with RLPTO, in a checkout or an
installation."""
PROFILES = Path(__file__).resolve().parents[1] / "performance" / "profiles"
"""Folders of model profiles that come with RLPTO."""
_EXAMPLE_ENDINGS = (".yaml", ".safetensors")
_OTHER_EXAMPLES = ("service",)
"""Files in the folder of experiments that are not experiments: settings of the job service."""


def example_config(name: str | Path, endings: tuple[str, ...] = _EXAMPLE_ENDINGS) -> Path | None:
    """The example of a name, with or without its ending: `quickstart`, `results/philly`, `tuned/philly.yaml`,
    `pretrained/synthetic`. None for an unknown name."""
    path = Path(name)
    if path.is_absolute() or ".." in path.parts or not path.name:
        return None
    named = (EXAMPLES / path.with_name(path.name + ending) for ending in ("", *endings))
    return next((found for found in named if found.suffix in endings and os.path.isfile(found)), None)


def portable(path: Path) -> str:
    """Return an absolute path as text, or the name by which `expand_path` finds a file of RLPTO in any clone."""
    place = path.resolve()
    inside = next((root for root in (EXAMPLES, PROFILES) if place.is_relative_to(root)), None)
    return str(path.absolute()) if inside is None else place.relative_to(inside).as_posix()


def example_names(folder: str = "", ending: str = ".yaml") -> list[str]:
    """Names of the experiments in a folder of examples (or of weights and agents there), without their ending."""
    found = sorted(EXAMPLES.joinpath(folder).glob(f"*{ending}"))
    names = [path.relative_to(EXAMPLES).with_suffix("").as_posix() for path in found]
    return [name for name in names if name not in _OTHER_EXAMPLES]


def example_trace(name: str | Path) -> Path | None:
    """The trace of a name, with or without its ending: `microsoft/cluster04`. None for an unknown name."""
    return example_config(name, (".parquet",))


def trace_names() -> list[str]:
    """Names of the traces, without their ending."""
    return example_names(ending="/*.parquet")


class TypedOnCommandLine(str):
    """Text of --set: a path in it is relative to the working directory, not to the file."""

    __slots__ = ()


def expand_path(value: object, info: ValidationInfo) -> object:
    """Fill in `${NAME}` and `${NAME:-default}`, then make the path relative to the config file.

    If there is no such file, examples are searched: `tuned/philly.yaml`, the trace `microsoft/cluster04` and the folder
    of profiles `llm` are found from any folder. A folder does not hide the file of an example.
    """
    if not isinstance(value, str | Path):
        return value
    text = _VARIABLE.sub(_variable_value, str(value))
    folder = (info.context or {}).get("folder", Path())
    base = Path() if isinstance(value, TypedOnCommandLine | Path) else folder
    path = os.path.normpath(base / _expanded(text))
    example = None if os.path.isfile(path) else example_config(text, (Path(text).suffix or ".parquet",))
    if example is not None:
        return str(example)
    if not os.path.exists(path) and os.path.isdir(PROFILES / text) and os.path.basename(text) == text:
        return str(PROFILES / text)
    return path


def _expanded(text: str) -> Path:
    """The path with the home folder in place of `~` or `~user`. Raises ValueError if there is no home folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"{text}: no home folder of that user, expected a path") from None


def _variable_value(match: re.Match[str]) -> str:
    name, default = match["name"], match["default"]
    value = os.environ.get(name) or default
    if value is None:
        raise ValueError(f"environment variable {name} is not set (${{{name}:-default}} would give it a default)")
    return value


ConfigPath = Annotated[Path, BeforeValidator(expand_path)]
"""A path in a configuration, expanded by `expand_path`."""
