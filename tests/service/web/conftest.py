from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.web.helpers import Api, running_api


@pytest.fixture(scope="module")
def shared_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One application for the tests of a module."""
    with running_api(tmp_path_factory.mktemp("shared") / "service") as running:
        yield running


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running_api(tmp_path / "service") as running:
        yield running
