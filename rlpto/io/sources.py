"""What decides the digits of a result on this machine. Importing this module reads the whole package."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARIES = ("numpy", "numba", "scipy", "torch")


def _digest() -> str:
    """Digest of all files of the package: its code and its data."""
    found = hashlib.sha256()
    folders = os.walk(_PACKAGE, followlinks=True)  # in a checkout some packages are links
    for path in sorted(Path(folder, name) for folder, _, names in folders for name in names):
        if path.suffix != ".pyc":
            found.update(f"{path.relative_to(_PACKAGE)}\0".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "missing"


FILES = _digest()
"""Digest of the files of RLPTO."""
LIBRARIES: dict[str, str] = {"Python": platform.python_version(), **{name: _version(name) for name in _LIBRARIES}}
"""Versions of what else decides the digits of a result, by name."""
