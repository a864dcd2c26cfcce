"""What an environment looks like: a picture of the GPUs over time, or a text."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlpto.arrays import FloatArray, IntArray
from rlpto.cluster import Cluster
from rlpto.jobs import PRIORITY_CLASSES, JobTable
from rlpto.records import AllocationChanges

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HOUR = 3600.0
WIDTH, HEIGHT, DPI = 960, 540, 96
"""Of a picture [pixels], and pixels per inch."""
PICTURE_MOMENTS = 760
"""Moments that a picture shows."""
INK, FAINT, DOWN = "#1f2933", "#dde3e8", "#f3c9c5"
CLASS_COLOURS = ("#c8413b", "#e0a13a", "#7d93a8")
"""Of waiting jobs: high, normal, low."""
LABELLED_SHARE = 0.035
"""Jobs that hold this share of the cluster or more have their name beside the picture."""
BAR_CHARACTERS = 64
"""Characters of the bar in a text, at most."""
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass
class Trail:
    """What pictures need to know of an episode so far.

    workload: its name. time [s]: of every decision. up: GPUs on nodes that were up. waiting: jobs without
    GPUs, by class after aging. began [s]: when the episode began. reward: sum of its terms since.
    """

    workload: str
    time: list[float] = field(default_factory=list)
    up: list[int] = field(default_factory=list)
    waiting: list[IntArray] = field(default_factory=list)
    began: float = 0.0
    reward: float = 0.0

    def note(self, cluster: Cluster, jobs: JobTable) -> None:
        """Add how the cluster stands now."""
        classes = jobs.effective_priority[jobs.waiting]
        self.time.append(cluster.time)
        self.up.append(cluster.up_gpus)
        self.waiting.append(np.bincount(classes, minlength=len(PRIORITY_CLASSES)))


def job_colour(job: int) -> tuple[float, float, float]:
    """Colour of a job by its number in the workload: neighbours differ much in hue."""
    hue = (job * 0.6180339887498949 + 0.58) % 1.0
    lightness = (0.46, 0.60, 0.72)[job % 3]
    return colorsys.hls_to_rgb(hue, lightness, 0.55)


def held_bands(changes: AllocationChanges, moments: FloatArray) -> tuple[IntArray, IntArray]:
    """Numbers of the jobs [J] that ever held GPUs, and GPUs [J, X] each held at `moments` [X] s."""
    jobs, row = np.unique(changes.job, return_inverse=True)
    order = np.lexsort((np.arange(len(row)), row))
    rows, gpus = row[order], changes.gpus[order]
    before = np.where(np.concatenate(([True], rows[1:] != rows[:-1])), 0, np.roll(gpus, 1)) if len(rows) else gpus
    deltas = np.zeros((len(jobs), len(moments) + 1), dtype=np.int64)
    np.add.at(deltas, (rows, np.searchsorted(moments, changes.time[order])), gpus - before)
    return jobs, np.cumsum(deltas, axis=1)[:, :-1]


def raster(jobs: IntArray, held: IntArray, up: IntArray, capacity: int) -> NDArray[np.float64]:
    """[capacity, X, 3] colour of every GPU at every moment, job upon job; white where idle.

    jobs: [J] numbers. held: [J, X]. up: [X] GPUs on nodes that are up; the others are shown as down.
    """
    colours = np.array([*map(job_colour, jobs.tolist()), (1.0, 1.0, 1.0), _rgb(DOWN)])
    idle, down = len(jobs), len(jobs) + 1
    owner = np.full((capacity, held.shape[1]), idle)
    owner[np.arange(capacity)[:, None] >= up[None, :]] = down
    for x in range(held.shape[1]):
        stack = np.repeat(np.arange(len(jobs)), held[:, x])[:capacity]
        owner[: len(stack), x] = stack
    image: NDArray[np.float64] = colours[owner]
    return image


def draw(cluster: Cluster, trail: Trail) -> NDArray[np.uint8]:
    """A picture [HEIGHT, WIDTH, 3]: GPUs over time, stacked by job, over the number of waiting jobs.

    Jobs have colours of their own; the line is the GPUs that are up; below it ticks mark arrivals, and
    crosses finished jobs. The same episode gives the same picture.
    """
    # Drawing needs matplotlib, training does not.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    end = max(cluster.time, 1.0) / HOUR
    moments = np.linspace(0.0, max(cluster.time, 1.0), PICTURE_MOMENTS)
    jobs, held = held_bands(cluster.changes(), moments)
    up = _steps(trail.time, trail.up, moments, cluster.shape.capacity)
    figure = Figure(figsize=(WIDTH / DPI, HEIGHT / DPI), dpi=DPI, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    top, low = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (4, 1), "hspace": 0.12})
    figure.subplots_adjust(left=0.07, right=0.86, top=0.91, bottom=0.1)
    image = raster(jobs, held, up, cluster.shape.capacity)
    top.imshow(
        image, origin="lower", aspect="auto", interpolation="nearest", extent=(0.0, end, 0, cluster.shape.capacity)
    )
    top.step(moments / HOUR, up, where="post", color=INK, linewidth=1.4)
    top.set_ylim(0, cluster.shape.capacity * 1.04)
    top.set_ylabel("GPUs held")
    _label_jobs(top, cluster, jobs, held)
    waiting = np.array([_steps(trail.time, [row[c] for row in trail.waiting], moments, 0) for c in range(3)])
    low.stackplot(moments / HOUR, *waiting[::-1], step="post", colors=CLASS_COLOURS[::-1], linewidth=0)
    _mark_events(low, cluster, max(int(waiting.sum(axis=0).max(initial=0)), 1))
    low.set_ylabel("waiting")
    low.set_xlabel("hours")
    low.set_xlim(0.0, end)
    for axes in (top, low):
        axes.axvspan(0.0, trail.began / HOUR, color="white", alpha=0.55, linewidth=0)
        axes.axvline(trail.began / HOUR, color=INK, linewidth=0.8, linestyle=":")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    _explain(low)
    figure.text(0.07, 0.945, headline(cluster, trail), fontsize=10, color=INK)
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


def tell(cluster: Cluster, jobs: JobTable, trail: Trail) -> str:
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


def _steps(times: list[float], values: list[int], moments: FloatArray, first: int) -> IntArray:
    """[X] a step function, known at `times`, at `moments`; `first` before them."""
    at = np.searchsorted(times, moments, side="right")
    steps: IntArray = np.concatenate(([first], np.asarray(values, dtype=np.int64)))[at]
    return steps


def _label_jobs(axes: Axes, cluster: Cluster, jobs: IntArray, held: IntArray) -> None:
    """Names of the larger jobs that hold GPUs now, beside their bands."""
    gpus = held[:, -1]
    middles = np.cumsum(gpus) - gpus / 2
    for job, now, middle in zip(jobs.tolist(), gpus.tolist(), middles.tolist(), strict=True):
        if now >= max(1, LABELLED_SHARE * cluster.shape.capacity):
            colour = tuple(0.8 * part for part in job_colour(job))
            axes.annotate(f"{_shortened(cluster.jobs[job].name)}: {now}", (1.01, middle), fontsize=7.5, color=colour,
                          xycoords=("axes fraction", "data"), va="center", annotation_clip=False)  # fmt: skip


def _mark_events(axes: Axes, cluster: Cluster, most: int) -> None:
    """Ticks where jobs arrived, crosses where they finished, under an axis that goes up to `most`."""
    store = cluster.store
    arrived = store.submit_time[store.submit_time <= cluster.time] / HOUR
    finished = store.finish_time[store.finish_time <= cluster.time] / HOUR
    axes.set_ylim(-0.45 * most, 1.05 * most)
    axes.plot(arrived, np.full(len(arrived), -0.14 * most), "|", color=INK, markersize=5, markeredgewidth=0.8)
    axes.plot(finished, np.full(len(finished), -0.32 * most), "x", color="#3a9a5b", markersize=4, markeredgewidth=0.9)
    axes.axhline(0.0, color=FAINT, linewidth=0.8)
    axes.set_yticks([0, most])


def _explain(axes: Axes) -> None:
    """What the marks and colours of the lower part mean, beside it."""
    entries = [*zip(PRIORITY_CLASSES, CLASS_COLOURS, strict=True), ("| submitted", INK), ("x finished", "#3a9a5b")]
    for place, (text, colour) in enumerate(entries):
        axes.annotate(text, (1.01, 0.93 - 0.21 * place), fontsize=7.5, color=colour, xycoords="axes fraction",
                      va="center", annotation_clip=False)  # fmt: skip


def _shortened(name: str, most: int = 18) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def _rgb(colour: str) -> tuple[float, float, float]:
    """A colour given as #rrggbb in parts of 1."""
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return red, green, blue
