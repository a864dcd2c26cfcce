"""Pictures and texts of an environment: the GPUs over time, or a line for every job."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rlpto.core.cluster import Cluster
from rlpto.core.job_table import JobTable
from rlpto.core.jobs import PRIORITY_CLASSES
from rlpto.core.loop import job_records
from rlpto.core.records import DecisionRecords, RunRecord
from rlpto.core.rewards import REWARD_PARTS
from rlpto.io.arrays import IntArray

HOUR = 3600.0
WIDTH, HEIGHT, DPI = 960, 540, 96
"""Of a picture [pixels], and pixels per inch."""
BAR_CHARACTERS = 64
"""Characters of the bar in a text, at most."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass
class Trail:
    """What pictures need to know of an episode so far.

    workload: its name. rows: of every decision the columns of `DecisionRecords.from_rows`. began [s]: when the episode
    began. reward: sum of its terms since.
    """

    workload: str
    rows: list[tuple[float, ...]] = field(default_factory=list)
    began: float = 0.0
    reward: float = 0.0

    def note(self, cluster: Cluster, jobs: JobTable) -> None:
        """Add how the cluster stands now."""
        waiting = int(np.count_nonzero(jobs.waiting))
        self.rows.append((cluster.time, 0.0, cluster.up_gpus, cluster.held_gpus, len(jobs), waiting))


def draw(cluster: Cluster, trail: Trail) -> NDArray[np.uint8]:
    """A picture [HEIGHT, WIDTH, 3]: GPUs over time, stacked by job, as in an evaluation's report.

    Jobs have colours of their own; the dashed line is the GPUs that are up, the dotted one the begin of the episode.
    The same episode gives the same picture.
    """
    # Drawing needs matplotlib, training does not.
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from rlpto.evaluation.plots import allocation_over_time

    rows, none = np.array(trail.rows), np.zeros((len(trail.rows), len(REWARD_PARTS)))
    decisions = DecisionRecords.from_rows(rows, none, none[:, 0])
    jobs = job_records(cluster)
    record = RunRecord(
        "agent", trail.workload, 0, cluster.shape.capacity, jobs, decisions, cluster.changes(), wall_seconds=0.0
    )
    figure = allocation_over_time(record)
    (axes,) = figure.axes
    axes.axvline((trail.began - float(jobs.submit_time.min())) / HOUR, color="black", linewidth=0.8, linestyle=":")
    axes.set_title(headline(cluster, trail), fontsize=9)
    figure.set_size_inches(WIDTH / DPI, HEIGHT / DPI)
    figure.set_dpi(DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels: NDArray[np.uint8] = np.asarray(canvas.buffer_rgba())[..., :3]  # type: ignore[no-untyped-call]
    return pixels.copy()


def headline(cluster: Cluster, trail: Trail) -> str:
    """One line about how the cluster stands."""
    state = cluster.state().jobs
    waiting = int(np.count_nonzero(state.gpus == 0))
    down = cluster.shape.capacity - cluster.up_gpus
    parts = [
        trail.workload,
        f"{cluster.time / HOUR:.2f} h",
        f"{cluster.held_gpus} of {cluster.up_gpus} GPUs held" + (f", {down} down" if down else ""),
        f"jobs: {len(state) - waiting} running, {waiting} waiting",
        f"reward {trail.reward:+.2f}",
    ]
    return "  ·  ".join(parts)


def describe(cluster: Cluster, jobs: JobTable, trail: Trail) -> str:
    """The cluster as text: a line, a bar of its GPUs by job, and a table of the active jobs in queue order."""
    given_or_asked = np.where(jobs.waiting, np.minimum(jobs.requested_gpus, jobs.speed.shape[1] - 1), jobs.gpus)
    hours = jobs.remaining / jobs.speed[np.arange(len(jobs)), given_or_asked] / HOUR
    lines = [headline(cluster, trail), bar(jobs.gpus, cluster.up_gpus, cluster.shape.capacity), ""]
    names = [cluster.jobs[j].name for j in jobs.index]
    width = max([len("job"), *map(len, names)])
    lines.append(f"  {'job':<{width}}  class   GPUs  asked  hours left  accuracy")
    for i, name in enumerate(names):
        letter = LETTERS[i % len(LETTERS)] if jobs.gpus[i] else " "
        lines.append(
            f"{letter} {name:<{width}}  {PRIORITY_CLASSES[jobs.effective_priority[i]]:<6}  {jobs.gpus[i]:>4}  "
            f"{jobs.requested_gpus[i]:>5}  {hours[i]:>10.2f}  {jobs.accuracy[i]:>8.3f}"
        )
    return "\n".join(lines) + "\n"


def bar(held: IntArray, up: int, capacity: int) -> str:
    """GPUs as characters: a letter for each job that holds some, `.` for idle ones, `x` for those that are down."""
    owner = np.full(capacity, ".")
    owner[up:] = "x"
    letters = np.array(list(LETTERS))[np.arange(len(held)) % len(LETTERS)]
    stack = np.repeat(letters, held)[:capacity]
    owner[: len(stack)] = stack
    shown = np.linspace(0, capacity - 1, min(capacity, BAR_CHARACTERS)).astype(np.int64)
    scale = "" if capacity <= BAR_CHARACTERS else f"  ({BAR_CHARACTERS} of {capacity} GPUs)"
    return f"[{''.join(owner[shown])}]{scale}"
