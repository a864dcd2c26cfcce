"""A small measured application in the genuine format, with times that can be worked out by hand."""

from pathlib import Path

import pytest

BATCHES = (8, 16, 64)
EPOCHS = 4
LOCAL = (2, 4, 16)


def step_and_sync(nodes: int, gpus: int, local: int) -> tuple[float, float]:
    """Seconds, linear in every argument, so that linear interpolation is exact anywhere."""
    sync = 0.0 if gpus == 1 else 0.02 * nodes + 0.01 * gpus
    return 0.1 + 0.01 * local + sync, sync


@pytest.fixture
def measured_folder(tmp_path: Path) -> Path:
    """A folder with one application `toy`; placement 13 is 1.5 times as slow as its size says."""
    toy = tmp_path / "measurements" / "toy"
    toy.mkdir(parents=True)
    rows = ["placement,local_bsz,step_time,sync_time"]
    for placement in ("1", "2", "3", "4", "11", "12", "22", "13", "44"):
        for local in LOCAL:
            step, sync = step_and_sync(len(placement), sum(map(int, placement)), local)
            rows.append(f"{placement},{local},{step * (1.5 if placement == '13' else 1.0)},{sync}")
    (toy / "placements.csv").write_text("\n".join(rows) + "\n")
    rows = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    for nodes, gpus in ((8, 8), (8, 32), (16, 16), (16, 64)):
        rows.extend(f"{nodes},{gpus},{x},{','.join(map(str, step_and_sync(nodes, gpus, x)))}" for x in LOCAL)
    (toy / "scalability.csv").write_text("\n".join(rows) + "\n")
    for i, batch in enumerate(BATCHES):
        lines = ["progress,iteration,metric,grad_sqr,grad_var"]
        for epoch in range(1, EPOCHS + 1):
            progress, iteration = 100 * epoch + i, 800 * epoch // batch
            lines.append(f"{progress},{iteration},{0.2 * epoch},{1.0 + i},{epoch * (2.0 + i)}")
        (toy / f"validation-{batch}.csv").write_text("\n".join(lines) + "\n")
    return toy.parent
