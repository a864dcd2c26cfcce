from pathlib import Path

import pytest

from tests.service.scheduler.virtual import VirtualService


@pytest.fixture
def service(tmp_path: Path) -> VirtualService:
    return VirtualService(tmp_path)
