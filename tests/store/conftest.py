from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlpto.store.database import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "service.sqlite")
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def new_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Store]:
    """Makes empty store, for tests that need several."""
    folder = tmp_path_factory.mktemp("store")
    numbers = iter(range(10**6))
    return lambda: Store(folder / f"{next(numbers)}.sqlite", durable=False)
