from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlpto.service.books.database import Books


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    opened = Books(tmp_path / "service.sqlite")
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def new_books(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Books]:
    """Makes empty books, for tests that need several."""
    folder = tmp_path_factory.mktemp("books")
    numbers = iter(range(10**6))
    return lambda: Books(folder / f"{next(numbers)}.sqlite", durable=False)
