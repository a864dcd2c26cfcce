"""Which files a workload is made of."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlpto.io.errors import TraceError
from rlpto.workloads.files import files_by_split


@pytest.mark.parametrize("folder", ["9" * 3000, "nowhere"])
def test_a_pattern_that_no_file_can_match_is_one_line(tmp_path: Path, folder: str) -> None:
    with pytest.raises(TraceError, match="expected at least one trace") as caught:
        files_by_split({"test": (tmp_path / folder / "*" / "x.csv",), "train": (), "validation": ()}, False)
    assert len(str(caught.value)) < 400
