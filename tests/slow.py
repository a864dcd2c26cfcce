"""Parametrized tests of which `make test` runs a few cases."""

from collections.abc import Iterable
from typing import Any

import pytest

TYPICAL = ("fifo", "elastic_fifo", "index", "gavel", "sia", "pollux", "configuration_manager")
"""One policy of each way to decide, for tests of all policies."""


def few(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """Return the cases as parameters, marked slow except for those in `kept`."""
    found = list(cases)
    assert set(kept) <= set(found), f"no case {set(kept) - set(found)}"
    return [pytest.param(case, marks=[] if case in kept else [pytest.mark.slow]) for case in found]
