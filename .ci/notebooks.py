"""Runs notebooks and stores them with their outputs: `python .ci/notebooks.py notebooks/*.ipynb`."""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]


def executed(notebook: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with its outputs, run in `folder` by this Python and this checkout."""
    os.environ |= {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder / "ipython")}
    cells = nbformat.read(notebook, 4)
    place = {"metadata": {"path": str(folder)}}
    NotebookClient(cells, kernel_name="python3", record_timing=False, coalesce_streams=True, resources=place).execute()
    cells.metadata.language_info = {"name": "python"}  # without the version of this Python
    return cells


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(executed(Path(name), Path(folder)), name)
