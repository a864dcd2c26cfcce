"""Base of all typed settings. Each package defines its own next to the code that uses them."""

from __future__ import annotations

import sys
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationInfo, field_validator

LowerCase = Annotated[str, StringConstraints(to_lower=True)]

LARGEST_NUMBER = 1e12
"""Largest magnitude of a setting without its own bounds. Larger ones could overflow sums."""

LARGEST_SEED = 2**32 - 1
"""Largest seed that every library accepts."""


class Settings(BaseModel):
    """Immutable settings that refuse unknown keys. Every field has a description with its unit.

    true and false are no numbers, and no number is larger than LARGEST_NUMBER unless its field allows it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _numbers_are_no_booleans(cls, value: Any, info: ValidationInfo) -> Any:
        if _takes_numbers(cls, str(info.field_name)) and any(isinstance(part, bool) for part in _parts(value)):
            raise ValueError("expected a number, got true or false")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _numbers_mean_something(cls, value: Any, info: ValidationInfo) -> Any:
        numbers = [part for part in _parts(value) if isinstance(part, int | float)]
        if any(abs(part) > LARGEST_NUMBER for part in numbers) and not _is_bounded(cls, str(info.field_name)):
            got = min(max(map(abs, numbers)), int(sys.float_info.max))  # an int may be larger than any float
            raise ValueError(f"expected at most {LARGEST_NUMBER:g}, got {got:g}")
        return 0.0 if isinstance(value, float) and value == 0.0 else value  # random generators refuse -0.0


@cache
def _takes_numbers(settings: type[Settings], name: str) -> bool:
    """Whether a field holds numbers, or lists of numbers, and no booleans."""
    kinds = set(_kinds(settings.model_fields[name].annotation))
    return bool(kinds & {int, float}) and bool not in kinds


@cache
def _is_bounded(settings: type[Settings], name: str) -> bool:
    """Whether a field has an upper bound of its own."""
    return any(hasattr(bound, "le") or hasattr(bound, "lt") for bound in settings.model_fields[name].metadata)


def _kinds(annotation: Any) -> list[Any]:
    inside = [kind for argument in get_args(annotation) for kind in _kinds(argument)]
    return inside or [annotation]


def _parts(value: Any) -> list[Any]:
    """A plain value, or the values in lists and mappings."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        return [part for entry in value for part in _parts(entry)]
    return [value]
