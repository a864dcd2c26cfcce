"""Throughput laws by the name that a profile gives under `throughput`, key `law`.

To add a law, write a frozen dataclass of its parameters that satisfies `ThroughputLaw`, in its own module, and add it
to `LAWS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetPydanticSchema
from pydantic_core import CoreSchema, core_schema

from rlpto.performance.parameter_server import ServerParams
from rlpto.performance.throughput import ThroughputLaw, ThroughputParams

LAWS: Mapping[str, type[ThroughputLaw]] = {
    "pollux": ThroughputParams,
    "parameter_server": ServerParams,
}
"""Classes of parameters."""
DEFAULT_LAW = "pollux"
"""The law of profiles that name none."""


def _named(given: Any) -> str | None:
    """Name of the law of a profile's `throughput`; None if it is not a valid name."""
    name = given.get("law", DEFAULT_LAW) if isinstance(given, dict) else getattr(given, "law", DEFAULT_LAW)
    return name if isinstance(name, str) else None


def _schema(_: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    return core_schema.tagged_union_schema(
        {name: handler(law) for name, law in LAWS.items()},
        discriminator=_named,
        custom_error_type="throughput_law",
        custom_error_message=f"Expected law to be one of {', '.join(LAWS)}",
    )


AnyLaw = Annotated[ThroughputLaw, GetPydanticSchema(_schema)]
"""Any of `LAWS`, as a field that pydantic reads."""
