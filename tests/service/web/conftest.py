from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from rlpto.service.web.app import make_app
from tests.service.web.helpers import Api, fill, make_settings


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    settings = make_settings(tmp_path / "service")
    tokens = fill(settings)
    with TestClient(make_app(settings), base_url="http://127.0.0.1:8765", raise_server_exceptions=False) as client:
        yield Api(client, settings, tokens)
