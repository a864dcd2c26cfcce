"""What processes of other hosts import first: versions that must agree, and values that each process fetches once.

It imports no library that a host may lack.
"""

from __future__ import annotations

import platform
from functools import lru_cache
from typing import Any, Generic, TypeVar

from rlpto.io.errors import ClusterError
from rlpto.io.sources import FILES, LIBRARIES

Value = TypeVar("Value")
VERSIONS = {"RLPTO": FILES, "processor": platform.machine(), **LIBRARIES}
"""What has to be the same on all hosts, since digits depend on it."""
FETCHED = 8
"""Number of shared values that a process keeps."""


class Shared(Generic[Value]):
    """A value that is sent to each process once, not with every task. Needs a connected cluster."""

    def __init__(self, value: Value) -> None:
        import ray

        self._reference: Any = ray.put(value)

    @property
    def value(self) -> Value:
        """The value, on any host."""
        found: Value = _fetched(self._reference)
        return found


@lru_cache(maxsize=FETCHED)
def _fetched(reference: Any) -> Any:
    import ray

    return ray.get(reference)


def call_there(function: Shared[Any], versions: dict[str, str], item: Any) -> Any:
    """Call a function with an item on this host. versions: `VERSIONS` of the driver."""
    check_versions(platform.node(), VERSIONS, versions)
    return function.value(item)


def check_versions(host: str, its: dict[str, str], wanted: dict[str, str] = VERSIONS) -> None:
    """Raise ClusterError unless a host has these versions."""
    other = [f"{name} {its.get(name)}, not {version}" for name, version in wanted.items() if its.get(name) != version]
    if other:
        raise ClusterError(
            f"host {host} has {', '.join(other)}: expected the same on all hosts, since digits depend on it"
        )
