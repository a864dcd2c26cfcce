"""Typed settings as text: YAML with every key explained, and messages for invalid values."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from rlpto.io.errors import ConfigError
from rlpto.io.paths import portable
from rlpto.io.reading import one_line
from rlpto.io.settings import Settings
from rlpto.io.yaml_file import Location, dotted_key, read_yaml

_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")

S = TypeVar("S", bound=Settings)


def read_settings(path: Path, kind: type[S], expected: str) -> S:
    """Settings of a YAML file, whose relative paths start at its folder. Raises ConfigError for any fault, in one line
    with the place and the expected value."""
    file = read_yaml(path, expected)
    try:
        return kind.model_validate(file.data, context={"folder": path.parent})
    except ValidationError as error:
        location, said = first_problem(error, kind)
        raise ConfigError(f"{file.place(location)}: {said}") from None


def first_problem(
    error: ValidationError,
    model: type[Settings] | None,
    whole: str = "the file",
    located: Callable[[Location], Location] = lambda location: location,
) -> tuple[Location, str]:
    """Place of the first error, and one line about it. Unknown keys come first because they cause the others.

    model: its keys are suggested for an unknown key. With None nothing is suggested. whole: subject of an error outside
    any key. located: maps a place in pydantic's model to the key in the file, if they differ.
    """
    details = sorted(error.errors(), key=lambda detail: detail["type"] not in _UNKNOWN_KEY)
    # pydantic does not count an invalid entry of a list, and then finds the list too short.
    places = [detail["loc"] for detail in details]
    details = [it for it in details if it["type"] != "too_short" or not any(_inside(at, it["loc"]) for at in places)]
    location = located(details[0]["loc"])
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return location, f"{dotted_key(location) or whole}: {_reason(details[0], model)}{more}"


def _inside(place: Location, outer: Location) -> bool:
    return len(place) > len(outer) and place[: len(outer)] == outer


def _reason(detail: ErrorDetails, model: type[Settings] | None) -> str:
    """Message for the error of one value, with the expected value."""
    context = detail.get("ctx", {})
    match detail["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            return "unknown key" + (_suggestion(detail["loc"], model) if model else "")
        case "value_error":
            return detail["msg"].removeprefix("Value error, ")
        case "missing":
            expected = "one more entry" if isinstance(detail["loc"][-1], int) else "a value"
            return f"missing, expected {expected}"
        case "invalid_key":
            return "expected a word as key"
        case "too_short":
            expected = f"at least {context['min_length']} entry"
        case "too_long":
            expected = f"at most {context['max_length']} entries"
        case "string_pattern_mismatch":
            expected = f"text that matches {context['pattern']}"
        case "literal_error":
            expected = context["expected"]
        case "tuple_type":
            expected = "a list"
        case "path_type":
            expected = "a path"
        case "model_type" | "model_attributes_type":
            expected = "keys and values"
        case _:
            said, ours = detail["msg"], detail["msg"].startswith("Expected ")
            expected = said.removeprefix("Expected ") if ours else said.removeprefix("Input should be ").split(", ")[0]
    got = "null" if detail["input"] is None else repr(detail["input"])
    return f"expected {expected}, got {one_line(got, 60)}"


def _suggestion(location: Location, model: type[Settings]) -> str:
    """Suggestion for an unknown key: a similar name at its level, or the same name elsewhere."""
    *around, wrong = location
    valid = {dotted_key(key): key for key in all_keys(model)}
    inside = tuple(part for part in around if isinstance(part, str))
    neighbours = {str(key[-1]): name for name, key in valid.items() if key[:-1] == inside}
    near = difflib.get_close_matches(str(wrong), neighbours, n=1)
    if near:
        return f", did you mean {dotted_key((*around, near[0]))}?"
    elsewhere = [name for name, key in valid.items() if key[-1] == wrong]
    if elsewhere:
        return f", did you mean {elsewhere[0]}?"
    nearest = difflib.get_close_matches(str(wrong), neighbours, n=1, cutoff=0.0)
    return f", the nearest valid key is {dotted_key((*around, nearest[0]))}" if nearest else ""


def all_keys(model: type[Settings], around: Location = ()) -> Iterator[Location]:
    """Every key of a settings model; list positions are left out."""
    for name, field in model.model_fields.items():
        yield (*around, name)
        for inner in _models_in(field.annotation):
            yield from all_keys(inner, (*around, name))


def _models_in(annotation: Any) -> Iterator[type[Settings]]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def described_yaml(settings: Settings) -> str:
    """Settings as YAML that can be read back: every key with its value, and its description as a comment."""
    return "\n".join(_described(settings)) + "\n"


def _described(settings: Settings) -> Iterator[str]:
    """Lines of YAML for one settings object, not indented."""
    for name, field in type(settings).model_fields.items():
        for line in (field.description or "").splitlines():
            yield f"# {line.strip()}"
        value = getattr(settings, name)
        if isinstance(value, Settings):
            yield f"{name}:"
            yield from (f"  {line}" for line in _described(value))
        elif isinstance(value, tuple) and any(isinstance(entry, Settings) for entry in value):
            yield f"{name}:"
            for position, entry in enumerate(value):
                lines = [line for line in _described(entry) if position == 0 or not line.lstrip().startswith("#")]
                first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
                yield from (f"  {line}" for line in lines[:first])
                yield f"  - {lines[first]}"
                yield from (f"    {line}" for line in lines[first + 1 :])
        else:
            yield f"{name}: {inline_yaml(value)}"


def inline_yaml(value: object) -> str:
    """A plain value or a list of them on one line of YAML."""
    escaped = isinstance(value, str) and not value.isprintable()
    text = yaml.safe_dump(
        _plain(value),
        default_flow_style=True,
        default_style='"' if escaped else None,
        width=10**6,
        allow_unicode=not escaped,
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return portable(value)
    if isinstance(value, Settings):
        return _plain(value.model_dump())
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, str) else value
