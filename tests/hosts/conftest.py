"""Three hosts for a test, where this machine allows them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.bed import Hosts, NoHostsError


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Hosts 0 to 2, with the folder `tmp_path` on all of them; gone after the test, also after a failed one."""
    try:
        with Hosts(3, tmp_path) as bed:
            yield bed
    except NoHostsError as error:
        pytest.skip(str(error))
