"""Additions to the project, one of every kind that CONTRIBUTING.md has a row for, and their use.

`test_extension_points.py` makes them on a copy.
"""

from __future__ import annotations

from .base import EXPERIMENT, LOG, PRELUDE, Addition
from .decisions import DECISIONS
from .reports import REPORTS
from .workloads import WORKLOADS

__all__ = ["ADDITIONS", "EXPERIMENT", "LOG", "PRELUDE", "Addition"]

ADDITIONS = DECISIONS | WORKLOADS | REPORTS
