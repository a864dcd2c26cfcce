"""The policies of the plug-in have their names in these tests, and in no others."""

import pytest

from tests import conftest as of_rlpto
from tests.conftest import shared_data as shared_data
from tests.plugins import SHOCKWAVE, install, policies_of


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Load the options and rules of RLPTO's tests, under the name by which pytest knows them if it has them already."""
    if not pluginmanager.has_plugin(of_rlpto.__file__):
        pluginmanager.register(of_rlpto, of_rlpto.__file__)


@pytest.fixture(autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the plug-in for one test."""
    install(policies_of(SHOCKWAVE), SHOCKWAVE, tmp_path_factory.mktemp("site"), monkeypatch)
