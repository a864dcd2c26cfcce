"""Packages of RLPTO's extras, and one message if they are not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from rlpto.io.errors import RlptoError

_PACKAGES = {
    "ray": ("greenlet", "grpc", "optuna", "ray"),
    "service": ("fastapi", "httpx2", "prometheus_client", "starlette", "uvicorn"),
    "oidc": ("jwt",),
    "huggingface": ("accelerate", "transformers"),
    "lightning": ("lightning",),
    "examples": ("minari", "tree"),
}
"""Modules that each extra of pyproject.toml adds to the extra before it."""


class MissingExtraError(RlptoError, ImportError):
    """A package of an extra is not installed."""


@contextmanager
def extras(*needed: str) -> Iterator[None]:
    """Turn a failed import of a package of an extra into MissingExtraError. needed: packages to check immediately."""
    try:
        for package in needed:
            if find_spec(package) is None:
                raise ModuleNotFoundError(name=package)
        yield
    except ModuleNotFoundError as missing:
        package = str(missing.name).partition(".")[0]
        extra = next((extra for extra, packages in _PACKAGES.items() if package in packages), None)
        if extra is None or isinstance(missing, RlptoError):
            raise
        raise MissingExtraError(
            f"{package} is not installed; expected the extra {extra}: pip install 'rlpto[{extra}]' "
            f"(in a clone: pip install -e '.[{extra}]')"
        ) from None
