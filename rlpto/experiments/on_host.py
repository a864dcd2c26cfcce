"""What processes of other hosts run: they check versions, and fetch each stored value once."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast

from rlpto.io.errors import ClusterError
from rlpto.io.sources import FILES, LIBRARIES

Value = TypeVar("Value")
VERSIONS = {"RLPTO": FILES, "processor": platform.machine(), **LIBRARIES}
"""What has to be the same on all hosts, since digits depend on it."""
FETCHED = 8
"""Number of stored values that a process keeps."""


@dataclass(frozen=True)
class Stored(Generic[Value]):
    """A value in the store of the connected cluster. Each process fetches it once, not with every task."""

    reference: Any

    @classmethod
    def of(cls, value: Value) -> Stored[Value]:
        """Store a value."""
        import ray

        return cls(ray.put(value))

    @property
    def value(self) -> Value:
        """The value, on any host."""
        return cast(Value, _fetched(self.reference))


@lru_cache(maxsize=FETCHED)
def _fetched(reference: Any) -> Any:
    import ray

    return ray.get(reference)


def call_there(function: Stored[Callable[[Any], Any]], versions: dict[str, str], item: Any) -> Any:
    """Call a function with an item on this host. versions: `VERSIONS` of the driver. Raises ClusterError if this host
    has others."""
    other = [f"{name} {VERSIONS[name]}, not {its}" for name, its in versions.items() if VERSIONS[name] != its]
    if other:
        raise ClusterError(
            f"host {platform.node()} has {', '.join(other)}: expected the same on all hosts, since digits depend on it"
        )
    return function.value(item)
