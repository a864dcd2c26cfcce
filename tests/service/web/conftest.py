from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.web.helpers import Api, running_api


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running_api(tmp_path / "service") as running:
        yield running
