"""Base of all typed settings. Each room defines its own beside the code that obeys them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Immutable, refuses unknown keys; every field carries a description with its unit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
