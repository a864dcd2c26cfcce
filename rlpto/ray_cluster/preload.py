"""Processes of Ray import this when they start, where `RAY_preload_python_modules` names it: then they get warm.

Importing it does something, in processes of Ray on Linux: others have no business with it.
"""

from __future__ import annotations

from rlpto.ray_cluster.warming import begin

begin()
