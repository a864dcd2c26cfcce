"""The digest of all files that decide results."""

from pathlib import Path

import pytest

from rlpto.io import sources


def test_files_of_linked_packages_count_and_compiled_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, linked = tmp_path / "rlpto", tmp_path / "agents"
    package.mkdir()
    linked.mkdir()
    (package / "agents").symlink_to(linked)  # as in a checkout
    (linked / "ppo.py").write_text("RATE = 1")
    monkeypatch.setattr(sources, "_PACKAGE", package)
    before = sources._digest()
    (linked / "ppo.cpython-311.pyc").write_text("compiled")
    assert sources._digest() == before
    (linked / "ppo.py").write_text("RATE = 2")
    assert sources._digest() != before
