"""A training from decisions that several modules look at."""

from pathlib import Path

import pytest

from tests.agents.helpers import train_small


@pytest.fixture(scope="session")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished training from decisions; tests leave it as it is."""
    folder = tmp_path_factory.mktemp("run")
    train_small(folder)
    return folder
